#include "world.h"

#include "../core/error.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <thread>

namespace tutti::distributed {
namespace {

// How long a rank waits for the answers of those that are absent at its deadline.
constexpr std::chrono::seconds answer_time{2};

// How long after the deadline ranks are spared that wait in a call that blocks.
constexpr std::chrono::seconds blocked_time{10};

// How long a rank waits before it asks whether others have departed. It asks again after twice the
// time, in the end after every `longest_silence`.
constexpr std::chrono::milliseconds first_silence{250}, longest_silence{5000};

}  // namespace

void throw_failure(const Failure& failure, const std::string& text, CollectiveInfo info) {
  failure.recorders.wait();
  if (failure.timeout) throw TimeoutError(text, std::move(info));
  throw DistributedError(text, std::move(info));
}

void throw_failure(const Failure& failure, const Collective& call, const GroupInfo& group) {
  const std::string here = describe(call, group);
  const std::string cause =
      failure.at.empty() || failure.at == here ? failure.what : failure.at + ": " + failure.what;
  // The advice concerns the call that failed, or this one, which waits for an absent rank as well.
  const bool lacks_advice = failure.timeout && call.of_model &&
                            !cause.ends_with(advice_for_one_rank);
  const std::string text =
      fmt::format("{}: {}{}{} [rank {} of {}]", here,
                  failure.at == here ? "" : "not done, because the group has failed: ", cause,
                  lacks_advice ? advice_for_one_rank : "", group.rank, group.size);
  throw_failure(failure, text,
                {group.rank, group.size, to_string(call.operation), call.sequence, call.name});
}

void World::fail(const Failure& failure) {
  if (has_failed_) return;
  Lock here = lock();
  fail(failure, here);
}

void World::fail(const Failure& failure, Lock&) {
  if (failure_) return;
  set_failure(options_.transport ? options_.transport->send_failure(failure) : failure);
}

void World::set_failure(Failure failure) {
  std::vector<std::shared_ptr<FlightRecorder>> recorders;
  for (const auto& [rank, recorder] : recorders_) recorders.push_back(recorder);
  failure.recorders = RecorderWrite(
      std::move(recorders), failure.at.empty() ? failure.what : failure.at + ": " + failure.what);
  failure_ = std::move(failure);
  has_failed_ = true;
  changed_.notify_all();
}

std::optional<Failure> World::failure() const {
  if (!has_failed_) return {};
  const std::lock_guard here(mutex_);
  return failure_;
}

std::optional<Failure> World::poll() {
  const Lock here(mutex_, std::try_to_lock);
  while (here && !has_failed_ && options_.transport) {
    std::optional<Notice> notice = options_.transport->receive();
    if (!notice) break;
    handle(std::move(*notice));
  }
  return here ? failure_ : failure();
}

void World::handle(Notice notice) {
  if (auto* failure = std::get_if<Failure>(&notice)) {
    set_failure(std::move(*failure));
  } else if (const auto* question = std::get_if<StatusRequest>(&notice)) {
    const auto self = peers_.find(options_.rank);
    options_.transport->send_status_reply(
        question->rank, {.rank = options_.rank,
                         .latest_calls = own_latest_calls(options_.rank).value_or(LatestCalls()),
                         .has_departed = self != peers_.end() && self->second.departed});
  } else {
    auto& answer = std::get<StatusReply>(notice);
    if (answer.has_departed) note_departure(answer.rank, std::move(answer.latest_calls));
    else peers_[answer.rank].latest_calls = std::move(answer.latest_calls);
    peers_[answer.rank].is_blocked = answer.is_blocked;
  }
}

std::shared_ptr<FlightRecorder> World::recorder(const GroupInfo& group) {
  const std::lock_guard here(mutex_);
  const int rank = group.world_ranks[static_cast<std::size_t>(group.rank)];
  auto& recorder = recorders_[rank];
  if (!recorder) recorder = std::make_shared<FlightRecorder>(rank, group.backend);
  return recorder;
}

void World::throw_if_failed(const Collective& call, const GroupInfo& group) const {
  if (const auto why = failure()) throw_failure(*why, call, group);
}

void World::throw_if_failed(const Collective& call, const GroupInfo& group, Lock& lock) const {
  const auto why = failure_;
  if (!why) return;
  lock.unlock();
  throw_failure(*why, call, group);
}

void World::depart(int rank) {
  const std::lock_guard here(mutex_);
  if (failure_) return;
  note_departure(rank, own_latest_calls(rank).value_or(LatestCalls()));
  changed_.notify_all();
}

void World::note_departure(int rank, LatestCalls latest_calls) {
  Peer& peer = peers_[rank];
  peer.latest_calls = std::move(latest_calls);
  if (!peer.departed) peer.departed = Clock::now();
  has_departures_ = true;
}

void World::ask(int rank, Clock::time_point now) {
  options_.transport->send_status_request(rank);
  Peer& peer = peers_[rank];
  peer.asked_at = now;
  peer.latest_calls.reset();
}

bool World::all_answer(std::span<const int> ranks) {
  const auto asked_at = Clock::now();
  Lock here = lock();
  if (failure_ || !can_ask()) return false;
  for (const int rank : ranks) ask(rank, asked_at);
  while (Clock::now() < asked_at + answer_time) {
    if (std::ranges::all_of(ranks, [&](int rank) { return peers_[rank].latest_calls.has_value(); }))
      return true;
    here.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (poll()) return false;
    here.lock();
  }
  return false;
}

bool World::give_up(const PendingCollective& pending) {
  // The time is taken before pending_state(), so that a rank that arrives meanwhile is not called
  // absent.
  const auto now = Clock::now();
  const bool asks = is_time_to_ask(pending, now);
  if (!asks && !may_have_failed(pending, now)) return false;
  PendingState state = pending.pending_state();  // without the lock: it may ask a server
  Lock here = lock();
  if (asks) ask_who_has_departed(state, pending);
  const auto why = verdict(pending, std::move(state), now);
  if (why) fail(*why, here);
  return why.has_value();
}

bool World::give_up(const PendingCollective& pending, Lock& lock) {
  const auto now = Clock::now();
  if (!may_have_failed(pending, now)) return false;
  const auto why = verdict(pending, pending.pending_state(), now);
  if (why) fail(*why, lock);
  return why.has_value();
}

// Cheap, because every wait asks it again and again.
bool World::may_have_failed(const PendingCollective& pending, Clock::time_point now) const {
  return has_departures_ || now >= pending.deadline().at || now >= pending.inspect_from();
}

bool World::is_time_to_ask(const PendingCollective& pending, Clock::time_point now) const {
  if (!can_ask()) return false;
  if (now < pending.next_question_) return false;
  const auto silence = first_silence * (1 << std::min<std::size_t>(pending.rounds_, 5));
  pending.next_question_ = now + std::min(silence, longest_silence);
  return ++pending.rounds_ > 1;
}

// Asks a few, others each time. The ranks that wait for one that has departed are many, so nobody
// asks all.
void World::ask_who_has_departed(const PendingState& state, const PendingCollective& pending) {
  std::vector<int> ranks = state.missing;
  for (const std::vector<int>& host : state.hosts_to_ask)
    ranks.insert(ranks.end(), host.begin(), host.end());
  const std::size_t few = first_few(ranks).size();
  for (std::size_t i = 0; i < few; ++i) {
    const int rank = ranks[(pending.rounds_ * few + i) % ranks.size()];
    options_.transport->send_status_request(
        pending.group().world_ranks[static_cast<std::size_t>(rank)]);
  }
}

std::optional<Failure> World::verdict(const PendingCollective& pending, PendingState state,
                                      Clock::time_point stalled_at) {
  Failure why;
  add_departed(state, pending, stalled_at);
  if (!state.disagreement.empty()) {
    why.what = std::move(state.disagreement);
  } else if (!state.departed.empty()) {
    why.what = departure(
        state, state.departed.size() == 1 ? options_.departed_one : options_.departed_many);
    why.what += all_latest_calls(state.departed, state, pending.group());
    if (pending.call().of_model) why.what += advice_for_one_rank;
  } else if (stalled_at >= pending.deadline().at) {
    if (!has_asked(state, pending)) return {};
    add_silent_hosts(state, pending);
    if (state.missing.empty() && stalled_at < pending.patient_until()) return {};
    if (stalled_at < pending.deadline().at + blocked_time &&
        only_blocked_are_missing(state, pending.group()))
      return {};
    why.what = absence(state, pending.deadline().timeout, pending.group().rank);
    why.what += all_latest_calls(ranks_to_describe(state), state, pending.group());
    if (pending.call().of_model) why.what += advice_for_one_rank;
    why.timeout = true;
  } else {
    return {};
  }
  why.at = describe(pending.call(), pending.group());
  return why;
}

void World::add_departed(PendingState& state, const PendingCollective& pending,
                         Clock::time_point stalled_at) const {
  if (!has_departures_) return;
  const GroupInfo& group = pending.group();
  const auto find = [&](int rank) {
    const auto found = peers_.find(group.world_ranks[static_cast<std::size_t>(rank)]);
    const bool has_departed = found != peers_.end() && found->second.departed &&
                              stalled_at >= *found->second.departed + options_.departure_delay;
    return has_departed ? &found->second : nullptr;
  };
  for (const int rank : state.missing)
    if (find(rank)) state.departed.push_back(rank);
  // The others may have departed after they did their part. So may one that does not tell the group
  // any more.
  for (const std::vector<int>& host : state.hosts_to_ask)
    for (const int rank : host) {
      const Peer* departed = find(rank);
      if (!departed || !departed->latest_calls) continue;
      const auto sequence = departed->latest_calls->sequence_of(group.id);
      if (sequence && *sequence < pending.call().sequence) state.departed.push_back(rank);
    }
}

// Adds the ranks of the unheard hosts that have not answered, or that have not issued this call.
void World::add_silent_hosts(PendingState& state, const PendingCollective& pending) const {
  const GroupInfo& group = pending.group();
  const auto waits = [&](int rank) {
    const auto asked = peers_.find(group.world_ranks[static_cast<std::size_t>(rank)]);
    if (asked == peers_.end() || !asked->second.latest_calls) return false;
    const auto sequence = asked->second.latest_calls->sequence_of(group.id);
    return sequence ? *sequence >= pending.call().sequence : asked->second.latest_calls->is_full();
  };
  std::set<int> missing(state.missing.begin(), state.missing.end());
  for (const std::vector<int>& host : state.hosts_to_ask)
    if (!waits(host.front()))
      std::ranges::remove_copy_if(host, std::inserter(missing, missing.end()), waits);
  state.missing.assign(missing.begin(), missing.end());
}

// Takes those out of the missing ranks that wait for others themselves, in a call that blocks: the
// rank at fault is one of those. Returns whether no other rank is missing.
bool World::only_blocked_are_missing(PendingState& state, const GroupInfo& group) const {
  const auto find = [&](int rank) {
    return peers_.find(group.world_ranks[static_cast<std::size_t>(rank)]);
  };
  const auto is_blocked = [&](int rank) {
    const auto found = find(rank);
    return found != peers_.end() && found->second.latest_calls && found->second.is_blocked;
  };
  if (std::ranges::none_of(state.missing, is_blocked)) return false;
  // Of many missing ranks only a few are asked. The others are probably where these are.
  std::erase_if(state.missing,
                [&](int rank) { return find(rank) == peers_.end() || is_blocked(rank); });
  return state.missing.empty();
}

// Asks the missing ranks for their latest calls, unless that has been done just now or since the
// deadline of `pending`. Returns whether all have answered, cannot be asked or have had their time.
bool World::has_asked(const PendingState& state, const PendingCollective& pending) {
  if (!can_ask()) return true;
  bool is_over = true;
  const auto now = Clock::now();
  for (const int rank : ranks_to_ask(state)) {
    const int there = pending.group().world_ranks[static_cast<std::size_t>(rank)];
    const auto known = peers_.find(there);
    if (state.latest_calls.contains(rank) || (known != peers_.end() && known->second.departed))
      continue;
    const bool has_had_time = known != peers_.end() && now >= known->second.asked_at + answer_time;
    if (known == peers_.end() || (has_had_time && known->second.asked_at < pending.deadline().at)) {
      ask(there, now);
      is_over = false;
    } else if (!known->second.latest_calls && !has_had_time) {
      is_over = false;
    }
  }
  return is_over;
}

std::optional<std::string> World::latest_calls(int rank, const PendingState& state,
                                               const GroupInfo& group) const {
  if (const auto found = state.latest_calls.find(rank); found != state.latest_calls.end())
    return found->second;
  const int there = group.world_ranks[static_cast<std::size_t>(rank)];
  if (const auto found = peers_.find(there); found != peers_.end())
    return found->second.latest_calls
               ? found->second.latest_calls->text
               : "unknown calls (no answer: its process is stopped, gone or busy)";
  const auto own = own_latest_calls(there);
  return own ? std::optional(own->text) : std::nullopt;
}

std::optional<LatestCalls> World::own_latest_calls(int world_rank) const {
  const auto found = recorders_.find(world_rank);
  if (found == recorders_.end()) return {};
  return LatestCalls(found->second->latest_calls());
}

// Returns where `absent` ranks and one rank that waits for them are, in all of their groups.
std::string World::all_latest_calls(std::span<const int> absent, const PendingState& state,
                                    const GroupInfo& group) const {
  std::string text;
  const auto add = [&](int rank, const std::string& calls) {
    text += fmt::format("{} rank {} at {}", text.empty() ? "" : ";", rank, calls);
  };
  if (absent.empty()) return {};
  for (const int rank : first_few(absent))
    if (const auto calls = latest_calls(rank, state, group)) add(rank, *calls);
  for (int rank = 0; rank < group.size; ++rank) {
    if (std::ranges::count(state.missing, rank) > 0) continue;
    const int there = group.world_ranks[static_cast<std::size_t>(rank)];
    if (const auto own = own_latest_calls(there)) {
      add(rank, own->text);
      break;
    }
  }
  return text.empty() ? text : ". Latest call of each group:" + text;
}

void World::check_step(const std::string& what, const Deadline& deadline, const GroupInfo& group) {
  if (Clock::now() >= deadline.at)
    fail({.at = what,
          .what = fmt::format("not all ranks were there within {}", to_string(deadline.timeout)),
          .timeout = true});
  const auto why = failure();
  if (!why) return;
  throw_failure(*why,
                fmt::format("{}: {}{}{} [rank {} of {}]", what, why->at,
                            why->at.empty() ? "" : ": ", why->what, group.rank, group.size),
                {.rank = group.rank, .world_size = group.size, .operation = what, .name = {}});
}

World::World(Options options) : options_(std::move(options)) {}

void World::check_watched() {
  const auto check = [this] { watcher_.check(); };
  try {
    if (options_.transport) options_.transport->guard(check);
    else check();
  } catch (const std::exception& error) {
    fail({.what = fmt::format("the watcher thread failed: {}", error.what())});
  }
}

}  // namespace tutti::distributed
