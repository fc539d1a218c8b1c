// LocalGroup: a group whose ranks are threads of one process. Each rank adds its call to the round
// of that call; the last rank to arrive computes the results of all, in rank order, which makes
// this the bitwise reference of the backends. Failures and deadlines are the World's, which all
// groups of one run_ranks() share and whose lock guards the state of the groups too.
#pragma once

#include "../../host_layout.h"
#include "local.h"

#include <map>

namespace tutti::distributed::local {

class LocalGroup;

/// One collective of a group, from the first rank's call on. Guarded by the lock of the World.
class Round : public PendingCollective {
 public:
  enum class Stage { gathering, computing, done, failed };

  explicit Round(const LocalGroup& group);
  void add(int rank, const Collective& call);
  bool is_complete() const { return arrived_ == calls.size(); }

  // What World asks for while the round is gathering.
  const Collective& call() const override;
  const GroupInfo& group() const override;
  Deadline deadline() const override { return deadline_; }
  PendingState pending_state() const override;

  Stage stage = Stage::gathering;
  std::vector<std::optional<Collective>> calls;  ///< By rank.
  Clock::time_point done_at = {};

 private:
  const LocalGroup& group_;
  std::size_t arrived_ = 0;
  Deadline deadline_;  // the earliest of the calls'
};

class LocalGroup : public std::enable_shared_from_this<LocalGroup> {
 public:
  /// Makes a group that the World's watcher checks while it lives. All ranks share it, so the rank
  /// in `info` has no meaning.
  static std::shared_ptr<LocalGroup> create(std::shared_ptr<World> world, GroupInfo info);

  const GroupInfo& info() const { return info_; }
  const std::shared_ptr<World>& world() const { return world_; }

  /// Adds the call of the rank `caller`. The last rank to arrive compares the calls and computes.
  /// Does not wait for other ranks.
  std::shared_ptr<Round> arrive(const Collective& call, const GroupInfo& caller);
  /// Waits until the round is done. Throws where the world fails first.
  void wait(const Round& round, const Collective& call, const GroupInfo& caller);
  bool is_done(const Round& round);
  /// Fails the world where a round will never be done, whether or not a rank waits for it.
  void check_rounds();
  /// Returns the subgroup with this `info`. `number` counts how many subgroups with these members
  /// the caller has asked for; ranks that ask with the same number get the same object.
  std::shared_ptr<LocalGroup> subgroup(const std::vector<int>& members, int number,
                                       const GroupInfo& info);
  std::int64_t last_completed() const;

 private:
  LocalGroup(std::shared_ptr<World> world, GroupInfo info)
      : world_(std::move(world)),
        info_(std::move(info)),
        layout_(info_),
        last_calls_(info_.world_ranks.size(), 0) {}
  void compute(Round& round, const Collective& call, const GroupInfo& caller, World::Lock& lock);

  struct Subgroup {
    std::shared_ptr<LocalGroup> group;
    std::size_t taken = 0;  // by how many of its members
  };

  const std::shared_ptr<World> world_;
  const GroupInfo info_;
  const HostLayout layout_;
  std::vector<std::int64_t> last_calls_;                   // by rank: the number of its latest call
  std::map<std::int64_t, std::shared_ptr<Round>> rounds_;  // those that wait for ranks
  std::map<std::pair<std::vector<int>, int>, Subgroup> subgroups_;
};

/// One rank's handle on a LocalGroup.
class LocalBackend : public Backend {
 public:
  LocalBackend(std::shared_ptr<LocalGroup> group, GroupInfo info)
      : Backend(std::move(info), group->world()), group_(std::move(group)) {}
  bool accepts(Device device) const override { return device.is_cpu(); }
  std::shared_ptr<Work::State> submit(const Collective& call) override;
  std::shared_ptr<Backend> subgroup(const std::vector<int>& members,
                                    const std::string& name) override;

 private:
  std::shared_ptr<LocalGroup> group_;
  std::map<std::vector<int>, int> subgroups_;  // by members: how many this rank has asked for
};

}  // namespace tutti::distributed::local
