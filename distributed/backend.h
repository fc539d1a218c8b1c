// Backend: what an implementation of a process group provides. A backend moves the data of
// collectives; ProcessGroup checks arguments and numbers the calls before, World keeps failures and
// deadlines. The backends that exist are listed in backends.h.
#pragma once

#include "../core/create.h"
#include "../core/fork.h"
#include "world.h"

#include <atomic>
#include <functional>
#include <string_view>

namespace tutti::distributed {

namespace rendezvous {
class Store;
}

/// How the names of the groups for normalization end. Their collectives are small, so that a
/// backend may give them less to work with.
inline constexpr std::string_view normalization_suffix = "/normalization";

/// One finished collective, as this rank saw it.
struct Timing {
  const Collective& call;
  std::chrono::steady_clock::time_point launched, done;
  double waited = 0;  ///< How many seconds the caller spent in wait().
};

/// One rank's part of a process group, as a transport implements it.
class Backend {
 public:
  /// A backend without a World (`world` is null) cannot fail, or overrides abort() and failure(),
  /// as one must that passes its calls on to another backend.
  explicit Backend(GroupInfo info, std::shared_ptr<World> world = nullptr);
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  const GroupInfo& info() const { return *info_; }
  /// The same object, for collectives that may outlive their group.
  const std::shared_ptr<const GroupInfo>& shared_info() const { return info_; }
  /// Returns the info() that this rank has in a subgroup of the ranks `members` of this group. The
  /// subgroup's ranks 0, 1, ... are the members in their order.
  GroupInfo subgroup_info(const std::vector<int>& members, const std::string& name) const;

  /// Returns whether submit() takes tensors of this device. ProcessGroup copies others through the
  /// staging_device().
  virtual bool accepts(Device device) const = 0;
  virtual Device staging_device() const { return Device::cpu(); }
  /// Starts a collective without waiting for other ranks. The result keeps the tensors alive until
  /// the collective is done.
  virtual std::shared_ptr<Work::State> submit(const Collective& call) = 0;
  /// Makes the group of the ranks `members` of this one, which become its ranks 0, 1, ... Exactly
  /// these ranks call it. ProcessGroup::split() makes two groups, the second for normalization.
  virtual std::shared_ptr<Backend> subgroup(const std::vector<int>& members,
                                            const std::string& name) = 0;
  /// Called instead of subgroup() by the ranks that join none of the new groups.
  virtual void skip_subgroup() {}
  /// Fails the world: every wait and every later call of every rank fail with this cause.
  virtual void abort(const std::string& cause);
  /// Returns why the world has failed, if it has. Does not wait for other ranks.
  virtual std::optional<Failure> failure();

  /// Returns whether this process is the child of a fork and the group its parent's, which alone
  /// can use it.
  bool belongs_to_parent() const { return process_.is_of_parent(); }

  /// Throws a DistributedError, which begins with `what`, where the calling thread is another rank
  /// of the same world (run_ranks): two ranks that share one object would wait for each other.
  /// Threads that are no rank may call for any.
  void check_thread(std::string_view what) const;

  // ProcessGroup keeps these here because copies of a handle share them.
  std::atomic<std::int64_t> calls{0};
  std::atomic<std::int64_t> bytes{0};
  /// How many layers and DataParallel objects of this rank have taken the group. Each has its
  /// number, which travels with its calls, so that ranks do not mix up two of one name.
  std::atomic<std::int64_t> layers{0}, models{0};
  std::function<void(const Timing&)> observer = {};  ///< Called after each wait() for a collective.

 protected:
  const std::shared_ptr<World>& world() const { return world_; }
  /// Notes that this rank issues `call`, for the errors of other ranks. A backend with a World
  /// calls it in submit().
  void record(const Collective& call);

 private:
  friend class ThreadWorld;
  // The world of the calling thread where that is a rank, else null.
  inline static thread_local const Backend* of_thread_ = nullptr;

  std::shared_ptr<const GroupInfo> info_;
  std::shared_ptr<World> world_;
  std::shared_ptr<FlightRecorder> recorder_;  // of this rank, where the backend has a World
  std::shared_ptr<FlightRecorder::Group> recorded_group_;
  ProcessMark process_;
};

/// Returns the call that this thread has recorded since the last time it asked, for the Work that
/// is made of it; none where it has recorded none.
RecordedCall take_recorded_call();

/// What a backend needs to make the world of this process, which is one rank of it.
struct ProcessWorldOptions {
  int rank = 0;           ///< What the launcher's variables say, for messages.
  int expected_size = 1;  ///< What the launcher's variables say.
  int local_rank = -1;    ///< If negative, the backend counts the ranks of this host.
  int device = -1;        ///< The CUDA device; if negative, the only one or that of the local rank.
  std::chrono::milliseconds timeout = default_group_timeout;
  /// Opens the store in which the ranks find each other. Only a backend that needs it calls this,
  /// once.
  std::function<std::shared_ptr<rendezvous::Store>()> open_store = {};
};

/// What a backend needs to make a world of threads.
struct ThreadWorldOptions {
  int ranks = 1;
  std::chrono::milliseconds timeout = default_group_timeout;
  int ranks_per_host = 0;  ///< As in RunOptions.
};

/// A world whose ranks are threads of this process, as run_ranks() uses it.
struct RanksAsThreads {
  /// Called on the thread of each rank: returns the rank's world group.
  std::function<std::shared_ptr<Backend>(int rank)> join;
  std::function<void(const Failure&)> fail;
  /// Called when the function of a rank has returned.
  std::function<void(int rank)> depart;
  /// Called once after all threads have been joined.
  std::function<void()> finish;
};

}  // namespace tutti::distributed
