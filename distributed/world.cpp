#include "world.h"

#include "../core/error.h"

#include <algorithm>
#include <iterator>
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
  if (failure.wait_for_recorders) failure.wait_for_recorders();
  if (failure.timeout) throw TimeoutError(text, std::move(info));
  throw DistributedError(text, std::move(info));
}

void throw_failure(const Failure& failure, const Collective& call, const GroupInfo& group) {
  const std::string here = describe(call, group);
  const std::string cause =
      failure.at.empty() || failure.at == here ? failure.what : failure.at + ": " + failure.what;
  // The advice concerns the call that failed, or this one, which waits for an absent rank as well.
  const bool lacks_advice = failure.timeout && call.options.of_model &&
                            !cause.ends_with(advice_for_one_rank);
  const std::string text =
      fmt::format("{}: {}{}{} [rank {} of {}]", here,
                  failure.at == here ? "" : "not done, because the group has failed: ", cause,
                  lacks_advice ? advice_for_one_rank : "", group.rank, group.size);
  throw_failure(
      failure, text,
      {group.rank, group.size, to_string(call.operation), call.sequence, call.options.name});
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
  failure.wait_for_recorders = start_writing(
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
  if (auto* failure = std::get_if<Failure>(&notice)) set_failure(std::move(*failure));
  else if (const auto* question = std::get_if<StatusRequest>(&notice)) answer(*question);
  else if (auto* reply = std::get_if<StatusReply>(&notice)) handle_reply(std::move(*reply));
  else if (const auto* release = std::get_if<Release>(&notice))
    releases_[{options_.rank, release->group_id}].insert(release->rank);
}

void World::answer(const StatusRequest& question) {
  StatusReply reply{.rank = options_.rank,
                    .latest_calls = own_latest_calls(options_.rank).value_or(LatestCalls()),
                    .group_id = question.group_id};
  if (const Peer* const self = find_peer(options_.rank)) reply.has_departed = !!self->departed;
  if (const auto own = recorders_.find(options_.rank); own != recorders_.end()) {
    reply.left_after = own->second->left_after(question.group_id);
    if (reply.left_after >= question.sequence) reply.left_after.reset();  // it has done its part
    const auto call = own->second->find(question.group_id, question.sequence);
    if (call && call->hash() != question.hash) reply.other_call = call;
  }
  options_.transport->send(question.rank, std::move(reply));
}

void World::handle_reply(StatusReply reply) {
  Peer& peer = peers_[reply.rank];
  peer.is_blocked = reply.is_blocked;
  if (reply.group_id != 0) peer.groups[reply.group_id] = reply;
  has_news_ = has_news_ || reply.other_call || reply.left_after;
  if (reply.has_departed) note_departure(reply.rank, std::move(reply.latest_calls));
  else peer.latest_calls = std::move(reply.latest_calls);
}

std::shared_ptr<FlightRecorder> World::recorder(const GroupInfo& group) {
  const std::lock_guard here(mutex_);
  const int rank = group.world_rank();
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
  has_news_ = true;
}

// Asks a rank for its latest calls and, where that is not null, for its part of a collective.
void World::ask(int world_rank, const PendingCollective* pending) {
  StatusRequest question{.rank = options_.rank};
  if (pending) {
    const Fingerprint& own = pending->call().fingerprint;
    question.group_id = pending->group().id;
    question.sequence = own.sequence;
    question.hash = own.hash();
  }
  options_.transport->send(world_rank, question);
}

bool World::all_answer(std::span<const int> ranks) {
  const auto asked_at = Clock::now();
  Lock here = lock();
  if (failure_ || !can_ask()) return false;
  for (const int rank : ranks) {
    ask(rank, nullptr);
    peers_[rank].asked_at = asked_at;
    peers_[rank].latest_calls.reset();
  }
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

bool World::give_up(PendingCollective& pending) {
  // The time is taken before pending_state(), so that a rank that arrives meanwhile is not called
  // absent.
  const auto now = Clock::now();
  const bool asks = pending.take_turn_to_ask(now);
  if (!asks && !may_have_failed(pending, now)) return false;
  PendingState state = pending.pending_state();
  Lock here = lock();
  if (asks) ask_who_has_departed(state, pending);
  const auto why = verdict(pending, std::move(state), now);
  if (why) fail(*why, here);
  return why.has_value();
}

bool World::give_up(PendingCollective& pending, Lock& lock) {
  const auto now = Clock::now();
  if (!pending.take_turn_to_ask(now) && !may_have_failed(pending, now)) return false;
  const auto why = verdict(pending, pending.pending_state(), now);
  if (why) fail(*why, lock);
  return why.has_value();
}

// Cheap, because every wait asks it again and again.
bool World::may_have_failed(const PendingCollective& pending, Clock::time_point now) const {
  return has_news_ || now >= pending.deadline().at;
}

bool PendingCollective::take_turn_to_ask(Clock::time_point now) {
  if (now < next_question_) return false;
  const auto silence = first_silence * (1 << std::min<std::size_t>(rounds_, 5));
  next_question_ = now + std::min(silence, longest_silence);
  return ++rounds_ > 1;
}

// Asks a few, others each time. The ranks that wait for one that has departed are many, so nobody
// asks all but rank 0 of a group whose devices wait.
void World::ask_who_has_departed(const PendingState& state, const PendingCollective& pending) {
  if (!can_ask()) return;
  std::vector<int> ranks = state.missing;
  for (const std::vector<int>& host : state.hosts_to_ask)
    ranks.insert(ranks.end(), host.begin(), host.end());
  const std::size_t few = state.asks_all ? ranks.size() : first_few(ranks).size();
  for (std::size_t i = 0; i < few; ++i) {
    const int rank = ranks[(pending.rounds_ * few + i) % ranks.size()];
    ask(pending.group().world_rank_of(rank), &pending);
  }
}

std::optional<Failure> World::verdict(const PendingCollective& pending, PendingState state,
                                      Clock::time_point stalled_at) {
  Failure why;
  add_disagreement(state, pending);
  add_departed(state, pending, stalled_at);
  if (!state.disagreement.empty()) {
    why.what = std::move(state.disagreement);
  } else if (!state.departed.empty()) {
    const GroupInfo& group = pending.group();
    const bool is_one = state.departed.size() == 1;
    const Peer* const peer = find_peer(group.world_rank_of(state.departed.front()));
    const bool has_ended = peer && peer->departed;
    why.what = departure(state, has_ended
                                    ? (is_one ? options_.departed_one : options_.departed_many)
                                : is_one ? "its group has been destroyed"
                                         : "their groups have been destroyed");
    why.what += all_latest_calls(state.departed, state, pending.group());
    if (pending.call().options.of_model) why.what += advice_for_one_rank;
  } else if (stalled_at >= pending.deadline().at) {
    if (!ask_at_deadline(state, pending)) return {};
    add_silent_hosts(state, pending);
    if (state.missing.empty() && stalled_at < pending.patient_until()) return {};
    if (stalled_at < pending.deadline().at + blocked_time &&
        spare_blocked_ranks(state, pending.group()))
      return {};
    why.what = absence(state, pending.deadline().timeout, pending.rank());
    why.what += all_latest_calls(ranks_to_describe(state), state, pending.group());
    if (pending.call().options.of_model) why.what += advice_for_one_rank;
    why.timeout = true;
  } else {
    return {};
  }
  why.at = describe(pending.call(), pending.group());
  return why;
}

// Finds a rank that is at another call of this number than the rank that waits for it.
void World::add_disagreement(PendingState& state, const PendingCollective& pending) const {
  if (!state.disagreement.empty()) return;
  const GroupInfo& group = pending.group();
  const auto compare = [&](int rank) {
    const auto other = other_call(group.world_rank_of(rank), pending);
    if (!other || !state.disagreement.empty()) return;
    Fingerprint calls[] = {pending.call().fingerprint, *other};
    int ranks[] = {pending.rank(), rank};
    if (ranks[0] > ranks[1]) std::swap(calls[0], calls[1]), std::swap(ranks[0], ranks[1]);
    state.disagreement = disagreement(calls, ranks);
  };
  for (const int rank : state.missing) compare(rank);
  for (const std::vector<int>& host : state.hosts_to_ask)
    for (const int rank : host) compare(rank);
}

std::optional<Fingerprint> World::other_call(int world_rank,
                                             const PendingCollective& pending) const {
  const Fingerprint& own = pending.call().fingerprint;
  std::optional<Fingerprint> found;
  if (const auto known = recorders_.find(world_rank); known != recorders_.end())
    found = known->second->find(pending.group().id, own.sequence);
  else if (const StatusReply* const answer = find_answer(world_rank, pending.group().id))
    found = answer->other_call;
  return found && found->sequence == own.sequence && !(*found == own) ? found : std::nullopt;
}

void World::add_departed(PendingState& state, const PendingCollective& pending,
                         Clock::time_point stalled_at) const {
  const GroupInfo& group = pending.group();
  const auto has_departed = [&](int rank) {
    const Peer* const peer = find_peer(group.world_rank_of(rank));
    return peer && peer->departed && stalled_at >= *peer->departed + options_.departure_delay;
  };
  const auto leaves = [&](int rank) { return has_left(group.world_rank_of(rank), pending); };
  for (const int rank : state.missing)
    if (has_departed(rank) || leaves(rank)) state.departed.push_back(rank);
  // The others may have departed after they did their part. So may one that does not tell the group
  // any more.
  for (const std::vector<int>& host : state.hosts_to_ask)
    for (const int rank : host) {
      const auto calls = has_departed(rank) ? known_calls(group.world_rank_of(rank)) : std::nullopt;
      const auto sequence = calls ? calls->sequence_of(group.id) : std::nullopt;
      if ((sequence && *sequence < pending.call().sequence) || leaves(rank))
        state.departed.push_back(rank);
    }
}

// Returns whether a rank, which may live on, has destroyed the group without issuing the call.
bool World::has_left(int world_rank, const PendingCollective& pending) const {
  const std::uint64_t group_id = pending.group().id;
  std::optional<std::int64_t> last;
  if (const auto own = recorders_.find(world_rank); own != recorders_.end())
    last = own->second->left_after(group_id);
  else if (const StatusReply* const answer = find_answer(world_rank, group_id))
    last = answer->left_after;
  return last && *last < pending.call().sequence;
}

// Adds the ranks of the unheard hosts that have not answered, or that have not issued this call.
void World::add_silent_hosts(PendingState& state, const PendingCollective& pending) const {
  const GroupInfo& group = pending.group();
  const auto waits = [&](int rank) {
    const auto calls = known_calls(group.world_rank_of(rank));
    if (!calls) return false;
    const auto sequence = calls->sequence_of(group.id);
    return sequence ? *sequence >= pending.call().sequence : calls->is_full();
  };
  std::set<int> missing(state.missing.begin(), state.missing.end());
  for (const std::vector<int>& host : state.hosts_to_ask)
    if (!waits(host.front()))
      std::ranges::remove_copy_if(host, std::inserter(missing, missing.end()), waits);
  state.missing.assign(missing.begin(), missing.end());
}

// Takes those out of the missing ranks that wait for others themselves, in a call that blocks: the
// rank at fault is one of those. Returns whether no other rank is missing.
bool World::spare_blocked_ranks(PendingState& state, const GroupInfo& group) const {
  const auto find = [&](int rank) { return find_peer(group.world_rank_of(rank)); };
  const auto is_blocked = [&](int rank) {
    const Peer* const peer = find(rank);
    return peer && peer->latest_calls && peer->is_blocked;
  };
  if (std::ranges::none_of(state.missing, is_blocked)) return false;
  // Of many missing ranks only a few are asked. The others are probably where these are.
  std::erase_if(state.missing, [&](int rank) { return !find(rank) || is_blocked(rank); });
  return state.missing.empty();
}

// Asks the missing ranks for their latest calls, unless that has been done just now or since the
// deadline of `pending`. Returns whether all have answered, cannot be asked or have had their time.
bool World::ask_at_deadline(const PendingState& state, const PendingCollective& pending) {
  if (!can_ask()) return true;
  bool is_over = true;
  const auto now = Clock::now();
  for (const int rank : ranks_to_ask(state)) {
    const int there = pending.group().world_rank_of(rank);
    Peer& peer = peers_[there];
    if (peer.departed) continue;
    const bool has_had_time = now >= peer.asked_at + answer_time;
    if (has_had_time && peer.asked_at < pending.deadline().at) {
      ask(there, &pending);
      peer.asked_at = now;
      peer.latest_calls.reset();
      is_over = false;
    } else if (!peer.latest_calls && !has_had_time) {
      is_over = false;
    }
  }
  return is_over;
}

// Returns where a rank of the world is: its own record, or what it has answered last.
std::optional<LatestCalls> World::known_calls(int world_rank) const {
  const Peer* const peer = find_peer(world_rank);
  return peer && peer->latest_calls ? peer->latest_calls : own_latest_calls(world_rank);
}

const World::Peer* World::find_peer(int world_rank) const {
  const auto found = peers_.find(world_rank);
  return found == peers_.end() ? nullptr : &found->second;
}

const World::StatusReply* World::find_answer(int world_rank, std::uint64_t group_id) const {
  const Peer* const peer = find_peer(world_rank);
  if (!peer) return nullptr;
  const auto found = peer->groups.find(group_id);
  return found == peer->groups.end() ? nullptr : &found->second;
}

std::optional<LatestCalls> World::own_latest_calls(int world_rank) const {
  const auto found = recorders_.find(world_rank);
  if (found == recorders_.end()) return {};
  return found->second->latest_calls();
}

// Returns where `absent` ranks and one rank that waits for them are, in all of their groups.
std::string World::all_latest_calls(std::span<const int> absent, const PendingState& state,
                                    const GroupInfo& group) const {
  std::string text;
  const auto add = [&](int rank, const std::string& calls) {
    text += fmt::format("{} rank {} at {}", text.empty() ? "" : ";", rank, calls);
  };
  if (absent.empty()) return {};
  for (const int rank : first_few(absent)) {
    const int there = group.world_rank_of(rank);
    if (const auto calls = known_calls(there)) add(rank, calls->text);
    else if (peers_.contains(there))
      add(rank, "unknown calls (no answer: its process is stopped, gone or busy)");
  }
  for (int rank = 0; rank < group.size; ++rank) {
    if (std::ranges::count(state.missing, rank) > 0) continue;
    const int there = group.world_rank_of(rank);
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

}  // namespace tutti::distributed
