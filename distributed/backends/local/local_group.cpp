// LocalGroup: a group whose ranks are threads of one process. Each rank adds its call to the round
// of that call; the last rank to arrive computes the results of all, in rank order, which makes
// this the bitwise reference of the backends. Failures and deadlines are the World's, which all
// groups of one run_ranks() share and whose lock guards the state of the groups too.
#include "../../data_flow.h"
#include "local.h"

#include <algorithm>
#include <map>

namespace tutti::distributed::local {

class LocalGroup;

// One collective of a group, from the first rank's call on. Guarded by the lock of the World.
class Round : public PendingCollective {
 public:
  enum class Stage { gathering, computing, done, failed };

  explicit Round(const LocalGroup& group);
  void add(int rank, const Collective& call);
  bool is_complete() const { return arrived_ == calls.size(); }

  // What World asks for while the round is gathering.
  const Collective& call() const override;
  const GroupInfo& group() const override;
  int rank() const override;
  Deadline deadline() const override { return deadline_; }
  PendingState pending_state() const override;

  Stage stage = Stage::gathering;
  std::vector<std::optional<Collective>> calls;  // By rank.
  Clock::time_point done_at = {};

 private:
  const LocalGroup& group_;
  std::size_t arrived_ = 0;
  Deadline deadline_;  // the earliest of the calls'
};

class LocalGroup {
 public:
  // The World's watcher checks the group while it lives. All ranks share it, so the rank in `info`
  // has no meaning. The first call tells the group's id.
  LocalGroup(std::shared_ptr<World> world, GroupInfo info)
      : world_(std::move(world)),
        info_(std::move(info)),
        layout_(info_),
        last_calls_(info_.world_ranks.size(), 0) {
    if (info_.size > 1) watch_ = watch(world_->watcher(), [this] { return check_rounds(); });
  }

  const GroupInfo& info() const { return info_; }
  const std::shared_ptr<World>& world() const { return world_; }

  // Adds the call of the rank `caller`. The last rank to arrive compares the calls and computes.
  // Does not wait for other ranks.
  std::shared_ptr<Round> arrive(const Collective& call, const GroupInfo& caller);
  // Waits until the round is done. Throws where the world fails first.
  void wait(Round& round, const Collective& call, const GroupInfo& caller);
  bool is_done(const Round& round);
  // Returns the subgroup with this `info`. `number` counts how many subgroups with these members
  // the caller has asked for; ranks that ask with the same number get the same object.
  std::shared_ptr<LocalGroup> subgroup(const std::vector<int>& members, int number,
                                       const GroupInfo& info);
  std::int64_t last_completed() const;

 private:
  // Fails the world where a round will never be done, whether or not a rank waits for it.
  bool check_rounds() noexcept;
  void compute(Round& round, const Collective& call, const GroupInfo& caller, World::Lock& lock);

  const std::shared_ptr<World> world_;
  GroupInfo info_;
  const HostLayout layout_;
  std::vector<std::int64_t> last_calls_;                   // by rank: the number of its latest call
  std::map<std::int64_t, std::shared_ptr<Round>> rounds_;  // those that wait for ranks
  // The copies that members have yet to take, by the members and the number.
  std::map<std::pair<std::vector<int>, int>, std::vector<std::shared_ptr<LocalGroup>>> subgroups_;
  std::shared_ptr<void> watch_;
};

// One rank's handle on a LocalGroup.
class LocalBackend : public Backend {
 public:
  LocalBackend(std::shared_ptr<LocalGroup> group, GroupInfo info)
      : Backend(std::move(info), group->world()), group_(std::move(group)) {}
  std::shared_ptr<WorkState> submit(const Collective& call) override;
  std::shared_ptr<Backend> subgroup(const std::vector<int>& members,
                                    const std::string& name) override;

 private:
  std::shared_ptr<LocalGroup> group_;
  std::map<std::vector<int>, int> subgroups_;  // by members: how many this rank has asked for
};

namespace {

// Computes the results of all ranks, whose calls have arrived and agree.
void compute_results(const std::vector<std::optional<Collective>>& calls,
                     const HostLayout& layout) {
  const Collective& first = *calls.front();
  const auto ranks = static_cast<int>(calls.size());
  const DataFlow flow(first, ranks);
  if (flow.count() == 0) return;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (const auto& call : calls) {
    inputs.push_back(call->input.raw());
    outputs.push_back(call->output.raw());
  }
  if (first.operation == Operation::all_reduce)  // all ranks take the same, in place
    return reduce_host_by_host(flow.dtype(), first.op, layout.hosts, inputs, outputs, flow.count());
  for (int to = 0; to < ranks; ++to)
    flow.compute(layout.hosts, to, outputs[static_cast<std::size_t>(to)],
                 [&](int from, std::size_t offset) {
                   return static_cast<const char*>(inputs[static_cast<std::size_t>(from)]) + offset;
                 });
}

class LocalWork : public WorkState {
 public:
  LocalWork(std::shared_ptr<LocalGroup> group, std::shared_ptr<Round> round, const Collective& call,
            std::shared_ptr<const GroupInfo> info)
      : group_(std::move(group)), round_(std::move(round)), call_(call), info_(std::move(info)) {}
  void wait() override { group_->wait(*round_, call_, *info_); }
  bool is_done() override { return group_->is_done(*round_); }
  Clock::time_point done_at() const override { return round_->done_at; }

 private:
  std::shared_ptr<LocalGroup> group_;
  std::shared_ptr<Round> round_;
  Collective call_;
  std::shared_ptr<const GroupInfo> info_;
};

}  // namespace

std::shared_ptr<WorkState> LocalBackend::submit(const Collective& call) {
  return std::make_shared<LocalWork>(group_, group_->arrive(call, info()), call, shared_info());
}

std::shared_ptr<Backend> LocalBackend::subgroup(const std::vector<int>& members,
                                                const std::string& name) {
  const GroupInfo there = subgroup_info(members, name);
  return std::make_shared<LocalBackend>(group_->subgroup(members, subgroups_[members]++, there),
                                        there);
}

std::shared_ptr<Round> LocalGroup::arrive(const Collective& call, const GroupInfo& caller) {
  World::Lock lock = world_->lock();
  world_->throw_if_failed(call, caller, lock);
  info_.id = caller.id;
  std::shared_ptr<Round>& slot = rounds_[call.sequence];
  if (!slot) slot = std::make_shared<Round>(*this);
  const std::shared_ptr<Round> round = slot;
  round->add(caller.rank, call);
  last_calls_[static_cast<std::size_t>(caller.rank)] = call.sequence;
  if (!round->is_complete()) return round;

  rounds_.erase(call.sequence);
  const auto agrees = [&](const auto& each) { return each->fingerprint == call.fingerprint; };
  if (!std::ranges::all_of(round->calls, agrees)) {
    std::vector<Fingerprint> all;
    for (const auto& each : round->calls) all.push_back(each->fingerprint);
    world_->fail({.at = describe(call, caller), .what = disagreement(all)}, lock);
    world_->throw_if_failed(call, caller, lock);
  }
  compute(*round, call, caller, lock);
  return round;
}

// Releases the lock while it computes, and locks again.
void LocalGroup::compute(Round& round, const Collective& call, const GroupInfo& caller,
                         World::Lock& lock) {
  round.stage = Round::Stage::computing;
  lock.unlock();
  try {
    compute_results(round.calls, layout_);
  } catch (const std::exception& error) {
    lock.lock();
    // The ranks that wait for this round have no deadline while it is computed, so the parts that
    // need no memory come first: there may be none left.
    round.stage = Round::Stage::failed;
    round.calls.clear();
    world_->notify(lock);
    Failure why;
    try {
      why = {.at = describe(call, caller),
             .what = fmt::format("rank {} could not compute the result: {}", caller.rank,
                                 error.what())};
    } catch (const std::bad_alloc&) {}
    world_->fail(why, lock);
    world_->throw_if_failed(call, caller, lock);
  }
  lock.lock();
  round.stage = Round::Stage::done;
  round.done_at = Clock::now();
  round.calls.clear();  // releases the tensors
  world_->notify(lock);
}

void LocalGroup::wait(Round& round, const Collective& call, const GroupInfo& caller) {
  World::Lock lock = world_->lock();
  while (round.stage != Round::Stage::done) {
    if (round.stage == Round::Stage::computing) {
      world_->wait(lock);  // the thread of another rank computes the result at this moment
    } else {
      if (!world_->failure(lock) && round.stage == Round::Stage::gathering)
        world_->give_up(round, lock);
      world_->throw_if_failed(call, caller, lock);
      world_->wait_until(lock, round.deadline().at);
    }
  }
}

bool LocalGroup::is_done(const Round& round) {
  const World::Lock lock = world_->lock();
  return round.stage == Round::Stage::done ||
         (round.stage != Round::Stage::computing && world_->failure(lock));
}

bool LocalGroup::check_rounds() noexcept {
  World::Lock lock = world_->lock();
  for (const auto& [sequence, round] : rounds_)
    if (world_->failure(lock) || world_->give_up(*round, lock)) break;
  return false;
}

std::int64_t LocalGroup::last_completed() const {
  // The ranks that have arrived have completed what the slowest of the others has arrived at.
  return *std::min_element(last_calls_.begin(), last_calls_.end());
}

Round::Round(const LocalGroup& group) : calls(group.info().world_ranks.size()), group_(group) {}

void Round::add(int rank, const Collective& call) {
  calls[static_cast<std::size_t>(rank)] = call;
  ++arrived_;
  if (const auto mine = Deadline::after(call.options.timeout); mine.at < deadline_.at)
    deadline_ = mine;
}

const Collective& Round::call() const { return *calls[static_cast<std::size_t>(rank())]; }

const GroupInfo& Round::group() const { return group_.info(); }

int Round::rank() const {
  return static_cast<int>(std::ranges::find_if(calls, &std::optional<Collective>::has_value) -
                          calls.begin());
}

PendingState Round::pending_state() const {
  PendingState state{.last_completed = group_.last_completed()};
  for (std::size_t r = 0; r < calls.size(); ++r)
    if (!calls[r]) state.missing.push_back(static_cast<int>(r));
  return state;
}

std::shared_ptr<LocalGroup> LocalGroup::subgroup(const std::vector<int>& members, int number,
                                                 const GroupInfo& info) {
  const World::Lock lock = world_->lock();
  const auto key = std::pair(members, number);
  auto& copies = subgroups_[key];
  if (copies.empty()) copies.assign(members.size(), std::make_shared<LocalGroup>(world_, info));
  std::shared_ptr<LocalGroup> group = std::move(copies.back());
  copies.pop_back();
  if (copies.empty()) subgroups_.erase(key);
  return group;
}

std::vector<std::shared_ptr<Backend>> make_world(GroupInfo info, int ranks_per_host) {
  info.group = "world";
  info.backend = "local";
  info.world_ranks = all_ranks(info.size);
  for (int rank = 0; rank < info.size && ranks_per_host > 0; ++rank)
    info.hosts.push_back(rank / ranks_per_host);
  const auto world =
      std::make_shared<World>(World::Options{.departed_one = "its function has returned",
                                             .departed_many = "their functions have returned"});
  const auto group = std::make_shared<LocalGroup>(world, info);
  std::vector<std::shared_ptr<Backend>> ranks;
  for (info.rank = 0; info.rank < info.size; ++info.rank) {
    info.local_rank = info.rank;
    ranks.push_back(std::make_shared<LocalBackend>(group, info));
  }
  return ranks;
}

}  // namespace tutti::distributed::local
