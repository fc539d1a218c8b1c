// The local backend: ranks are threads of one process. A Hub is where the ranks of one group meet;
// all groups that descend from one run_ranks share a Domain, so that whatever breaks one of them is
// known to every rank at once. The last rank to arrive at a collective computes it for all, in rank
// order: the bitwise reference of the backends.
#pragma once

#include "../../backend.h"

#include <condition_variable>
#include <map>
#include <mutex>

namespace tutti::distributed::local {

class Hub;

/// One lock for all groups of a run: they are few, and each holds it only to look.
struct Domain {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Failure> failure;  ///< the first one
  std::vector<bool> left;          ///< by rank of the world: its function has returned
  std::vector<Hub*> hubs;          ///< those alive

  explicit Domain(int ranks) : left(static_cast<std::size_t>(ranks), false) {}
  void fail(Failure why);
  void leave(int rank);
  /// Breaks the domain where a collective is past its deadline, whether or not anybody waits for
  /// it.
  void look();
};

/// One collective while it is gathered and computed.
struct Meeting {
  enum class Stage { gathering, computing, done, failed };
  Stage stage = Stage::gathering;
  int present = 0;
  std::chrono::steady_clock::time_point done_at = {};
  std::vector<std::optional<Collective>> calls;  ///< by rank
  /// The first of the calls', and the timeout of that one.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  std::chrono::milliseconds timeout{0};
};

class Hub {
 public:
  Hub(std::shared_ptr<Domain> domain, std::vector<int> world_ranks, std::string name);
  ~Hub();

  /// Adds rank's call; the last to come compares and computes. Never waits for another rank.
  std::shared_ptr<Meeting> arrive(int rank, const Collective& call, const Backend::Place& place);
  /// Until it is computed, the group has failed, a missing rank has left, or the deadline.
  void wait(const Meeting& meeting, const Collective& call, const Backend::Place& place);
  bool is_done(const Meeting& meeting);
  /// The `number`-th hub that this rank asks for with these members; the same object for all of
  /// them.
  std::shared_ptr<Hub> child(const std::vector<int>& members, int number, const std::string& name);
  Domain& domain() { return *domain_; }

 private:
  friend struct Domain;
  bool is_hopeless(const Meeting& meeting);  // under the lock: and if so, breaks the domain
  std::vector<int> missing_from(const Meeting& meeting) const;

  struct Child {
    std::shared_ptr<Hub> hub;
    std::size_t taken = 0;
  };

  std::shared_ptr<Domain> domain_;
  std::vector<int> world_ranks_;
  std::string name_;
  std::vector<std::int64_t> last_;  // by rank: the number of its latest call
  std::map<std::int64_t, std::shared_ptr<Meeting>> meetings_;  // those that some have not come to
  std::map<std::pair<std::vector<int>, int>, Child> children_;
};

class LocalBackend : public Backend {
 public:
  LocalBackend(std::shared_ptr<Hub> hub, Place place)
      : Backend(std::move(place)), hub_(std::move(hub)) {}
  bool accepts(Device device) const override { return device.is_cpu(); }
  std::shared_ptr<Work::State> submit(const Collective& call) override;
  std::shared_ptr<Backend> subgroup(const std::vector<int>& members,
                                    const std::string& name) override;
  void abort(const std::string& cause) override;
  std::optional<Failure> failure() override;

 private:
  std::shared_ptr<Hub> hub_;
  std::map<std::vector<int>, int> subgroups_;  // how many this rank has asked for
};

}  // namespace tutti::distributed::local
