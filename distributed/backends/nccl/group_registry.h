// GroupRegistry: the groups of one world on one rank, as the watcher thread sees them. The watcher
// drops collectives that are done, hands those that take long to World::give_up(), asks NCCL for
// errors, aborts all communicators once the world has failed, and frees communicators that no
// member uses any more.
//
// The ranks' agreement on a collective is not checked in advance, which would cost a second
// collective. Each rank writes the fingerprints of its collectives under way to the rendezvous
// store. Where a collective takes more than a second, rank 0 compares them, and each next rank a
// quarter of a second later where no lower one has failed the world.
#pragma once

#include "../../../core/cuda/stream.h"
#include "../../../core/fork.h"
#include "communicator.h"
#include "report.h"

#include <condition_variable>
#include <deque>

namespace tutti::distributed::nccl {

/// A collective that this rank has issued and the device has not finished. It keeps its tensors
/// alive.
struct IssuedCall {
  Collective call;
  Fingerprint fingerprint;
  cuda::Event ready;      ///< The device has computed the inputs.
  cuda::Event done;       ///< The device has finished the collective.
  bool launched = false;  ///< `done` has been recorded.
  /// Since when the collective has waited for nothing but the other ranks.
  std::optional<Clock::time_point> waiting_since = {};
  int looks = 0;  ///< How often the watcher has compared it with those of the other ranks.
};

using IssuedCalls = std::vector<std::shared_ptr<IssuedCall>>;

/// A group's communicator, stream and calls. It lives until all members have released the group and
/// no graph holds it.
struct RegisteredGroup {
  RegisteredGroup(std::string group_key, GroupInfo group_info, cuda::Stream own)
      : key(std::move(group_key)), info(std::move(group_info)), stream(std::move(own)) {}

  const std::string key;  ///< The same on every member, and of no other group.
  const GroupInfo info;
  const cuda::Stream stream;  ///< Where the group's collectives run.
  Communicator communicator{stream.device()};

  std::mutex mutex;  ///< Guards what follows.
  std::deque<std::shared_ptr<IssuedCall>> calls;
  std::int64_t last_issued = 0;
  int graph_collectives = 0;              ///< How many collectives CUDA graphs hold.
  std::weak_ptr<const void> captured_in;  ///< The arena of the graph that took the latest of them.
  IssuedCalls replayed;   ///< Those of graphs that are gone; `done` comes after the last replay.
  bool released = false;  ///< No handle of the group is left on this rank.

  /// Removes the calls that the device has finished and returns them. The caller holds the lock,
  /// and drops them, with their tensors, without it.
  IssuedCalls take_finished();

  // Used by the watcher thread only.
  std::optional<Clock::time_point> error_since = {};
  cuda::Event last = cuda::Event();  ///< Recorded after the stream's last work.
  bool is_counted = false;           ///< The store counts this rank among those that released it.
};

class GroupRegistry {
 public:
  GroupRegistry(std::shared_ptr<rendezvous::Store> store, int device);
  ~GroupRegistry();
  GroupRegistry(const GroupRegistry&) = delete;
  GroupRegistry& operator=(const GroupRegistry&) = delete;

  int device() const { return device_; }
  const std::shared_ptr<World>& world() const { return world_; }
  void add(std::shared_ptr<RegisteredGroup> group);
  /// Throws a DeviceError where a graph that holds collectives of another group is to take one of
  /// `group`, and NCCL is too old to let all devices run them in one order.
  void check_order_of_launches(const RegisteredGroup& group,
                               const std::shared_ptr<const void>& graph);
  /// Returns an id that rank 0 of the group makes and the other members read from the store, for
  /// Communicator::join(). Each group calls it at most once.
  ncclUniqueId shared_id(const RegisteredGroup& group, const Poll& poll);
  /// Marks a group as released. Its communicator is freed when all members have released it and no
  /// graph holds it; until then other members may be receiving. They count in the store.
  void release(RegisteredGroup& group);
  /// Releases all groups, waits up to 10 s for the other ranks to release theirs, ends the watcher
  /// and waits up to 10 s more for the graphs that hold communicators. A shorter timeout of the
  /// store replaces the 10 s.
  void close();

 private:
  class OldestCall;

  const rendezvous::Member& member() const { return store_->member(); }
  // On the watcher thread.
  void check() noexcept;
  void fail_world(const char* why) noexcept;
  void check_groups();
  void publish_calls();
  void check_oldest_call(RegisteredGroup& group);
  static bool is_idle(RegisteredGroup& group);
  void count_release(RegisteredGroup& group);
  // On any thread.
  void abort_all();
  void remove(RegisteredGroup& group);

  const std::shared_ptr<rendezvous::Store> store_;
  const int device_;
  const std::shared_ptr<World> world_;
  const std::shared_ptr<FlightRecorder> recorder_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<RegisteredGroup>> groups_;
  bool closed_ = false;
  // Used by the watcher thread only.
  std::int64_t checks_ = 0;
  std::string published_;
  const ProcessMark process_;
  std::optional<WatchScope> watch_;
};

/// Closes the registry at the latest when the process exits, before CUDA is gone.
void close_at_exit(const std::shared_ptr<GroupRegistry>& registry);

/// The oldest call of a group that the device has not finished, for World::give_up(). It says when
/// this rank compares the call with those of the other ranks, and finds in their reports who is
/// missing or disagrees. Its time counts from when this rank's inputs are ready, because what its
/// own device has still to do is no fault of another rank.
class GroupRegistry::OldestCall : public PendingCollective {
 public:
  OldestCall(GroupRegistry& registry, const RegisteredGroup& group, const IssuedCall& issued)
      : registry_(registry), group_(group), issued_(issued) {}
  const Collective& call() const override { return issued_.call; }
  const GroupInfo& group() const override { return group_.info; }
  Deadline deadline() const override {
    return Deadline::after(call().timeout, *issued_.waiting_since);
  }
  Clock::time_point inspect_from() const override;
  PendingState pending_state() const override;

 private:
  GroupRegistry& registry_;
  const RegisteredGroup& group_;
  const IssuedCall& issued_;
};

}  // namespace tutti::distributed::nccl
