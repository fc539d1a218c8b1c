// Backend: what an implementation of a process group provides. A backend moves the data of
// collectives; ProcessGroup checks arguments and numbers the calls before, World keeps failures and
// deadlines.
#pragma once

#include "../core/create.h"
#include "../core/fork.h"
#include "world.h"

#include <atomic>
#include <functional>
#include <string_view>
#include <vector>

namespace tutti::distributed {

/// One rank's part of a process group, as a transport implements it.
class Backend {
 public:
  /// A backend without a World (`world` is null) cannot fail, or overrides abort() and failure().
  explicit Backend(GroupInfo info, std::shared_ptr<World> world = nullptr);
  /// Makes a backend that passes its calls on to `inner`, whose failures and deadlines count. CUDA
  /// tensors are copied through the host, unless it accepts them.
  explicit Backend(const std::shared_ptr<Backend>& inner);
  virtual ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  const GroupInfo& info() const { return *info_; }
  /// The same object, for collectives that may outlive their group.
  const std::shared_ptr<const GroupInfo>& shared_info() const { return info_; }
  /// Returns the info() that this rank has in a subgroup of the ranks `members` of this group. The
  /// subgroup's ranks 0, 1, ... are the members in their order.
  GroupInfo subgroup_info(const std::vector<int>& members, const std::string& name) const;

  /// Returns whether submit() takes tensors of this device. ProcessGroup copies others through the
  /// CPU, unless the group has a lane for them.
  virtual bool accepts(Device device) const { return device.is_cpu(); }
  /// Returns what the group can do with tensors of a device.
  virtual Capabilities capabilities(Device device) const;
  /// Starts a collective without waiting for other ranks. The result keeps the tensors alive until
  /// the collective is done.
  virtual std::shared_ptr<WorkState> submit(const Collective& call) = 0;
  /// Makes the group of the ranks `members` of this one, which become its ranks 0, 1, ... Exactly
  /// these ranks call it. ProcessGroup::split() makes two groups, the second for normalization.
  virtual std::shared_ptr<Backend> subgroup(const std::vector<int>& members,
                                            const std::string& name) = 0;
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

  /// The ranks that were started together, as this one sees them; null for a backend that cannot
  /// fail.
  const std::shared_ptr<World>& world() const { return world_; }
  /// Notes that this rank issues `call`, for the errors of other ranks. Nobody asks a group without
  /// a world.
  RecordedCall record(const Collective& call);
  /// Returns the device of the lane of the group's CUDA tensors; -1 where they are staged.
  int device_of_lane() const;
  /// Throws a DeviceError for a CUDA tensor on another device than that of the lane. From there it
  /// would be copied, and ranks as threads, which share the streams of a device, would wait for
  /// each other on it.
  void check_device(Operation operation, const Tensor& tensor) const;
  /// Returns whether a tensor takes the lane of the group; else it goes through the hosts.
  bool takes_lane(Operation operation, const Tensor& tensor) const;
  /// Starts a call on the lane of the group, which the first one makes and sets up.
  std::shared_ptr<WorkState> submit_on_lane(const Collective& call);
  /// Returns the lane of the group's CUDA tensors; null where no call has taken it yet.
  Lane* made_lane() const { return lane_.get(); }

  // ProcessGroup keeps these here because copies of a handle share them.
  std::atomic<std::int64_t> calls{0};
  std::atomic<std::int64_t> bytes{0};
  /// How many layers and DataParallel objects of this rank have taken the group. Each has its
  /// number, which travels with its calls, so that ranks do not mix up two of one name.
  std::atomic<std::int64_t> layers{0}, models{0};
  /// The numbers of the first parameters of these objects, which tell in which order the modules
  /// were made. Of the thread that constructs DataParallel objects.
  std::vector<std::uint64_t> first_parameter_numbers = {};

 private:
  friend class ThreadWorld;
  // The world of the calling thread where that is a rank, else null.
  inline static thread_local const Backend* of_thread_ = nullptr;

  std::shared_ptr<const GroupInfo> info_;
  std::shared_ptr<World> world_;
  std::shared_ptr<FlightRecorder> recorder_;  // of this rank; null without a world
  std::shared_ptr<FlightRecorder::Group> recorded_group_;
  bool passes_on_ = false;  // its calls, to another backend
  std::shared_ptr<Lane> lane_;
  ProcessMark process_;
};

}  // namespace tutti::distributed
