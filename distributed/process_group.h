// ProcessGroup: a set of ranks that compute collectives together. It is a handle on a backend:
// ranks are threads of one process (backends/local) or processes on any number of hosts
// (backends/mpi). Tensors on GPUs travel between these by NCCL where each rank has one
// (backends/nccl), and else through the hosts. It knows tensors, and neither gradients nor modules.
//
// Every member of a group must issue the same collectives in the same order. Every wait has a
// deadline; on failure every rank gets a DistributedError that names the collective, its number and
// the rank at fault.
#pragma once

#include "../core/create.h"
#include "../core/fork.h"
#include "flight_recorder.h"

#include <functional>

namespace tutti::distributed {

class Backend;  // what an implementation provides: backend.h

/// A collective that has been started. Its tensors must not be touched before wait() has returned
/// or is_done() has returned true. Where the backend's capabilities say `device_waits`, wait()
/// returns at once and orders the caller's current stream after the collective instead.
class [[nodiscard]] Work {
 public:
  /// Makes a Work that is already done.
  Work() = default;
  /// `recorded` is the call in the flight recorder of the rank, where that has it.
  explicit Work(std::shared_ptr<WorkState> state, RecordedCall recorded = {});
  /// Waits until the collective is done and throws what went wrong. In the child of a fork it
  /// throws a DistributedError, because the parent's collectives never complete there.
  void wait();
  /// Returns whether the collective is done or has failed, without waiting for other ranks. Once it
  /// returns true, the tensors hold the result, and wait() returns at once or throws what went
  /// wrong. Only one of the threads that share a Work may call it or wait() at a time.
  bool is_done();

 private:
  std::shared_ptr<WorkState> state_;
  RecordedCall recorded_;
  ProcessMark process_;  // of the process that issued it
};

/// Returns a Work that waits for `work`, and then copies its result `from` to `to`, once.
Work copy_after(Work work, const Tensor& from, const Tensor& to);

/// The number of collectives that this rank has issued in a group of several ranks, and the bytes
/// of their inputs.
struct Traffic {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
};

/// The options of from_environment().
struct WorldOptions {
  /// The CUDA device of this rank; if negative, the only one that it sees, or first_device + its
  /// local rank.
  int device = -1;
  int first_device = 0;
  /// Whether CUDA tensors may travel by NCCL. They do where every rank has a GPU of its own, the
  /// library has NCCL, and TUTTI_NCCL=0 is set on no rank; else they are staged through the hosts.
  bool nccl = true;
  std::chrono::milliseconds timeout = default_group_timeout;
};

/// A handle on a group of ranks that call collectives together. Copies share the group.
class ProcessGroup {
 public:
  static constexpr std::chrono::milliseconds default_timeout = default_group_timeout;

  /// Makes the group of this rank alone, in which every collective is done at once.
  ProcessGroup();
  explicit ProcessGroup(std::shared_ptr<Backend> backend);

  /// Returns the world in which this process was started by mpirun or srun, or a group of one, and
  /// makes it world(). `timeout` is how long a rank waits for the others: here (a
  /// TimeoutError), in collectives without a timeout of their own, and when the process exits,
  /// where a rank that does not exit in that time makes the others end the whole job. Throws a
  /// DistributedError that lists what was found, and the line to start with, where several
  /// processes were started and MPI cannot find them.
  static ProcessGroup from_environment(const WorldOptions& options);
  static ProcessGroup from_environment(std::chrono::milliseconds timeout = default_timeout);

  int rank() const;
  int size() const;
  int local_rank() const;           ///< The number of this rank among the ranks of its host.
  const std::string& name() const;  ///< "world", "world/split0", ...
  /// Returns the backend's name, for messages: "single", "local" or "mpi". Code that depends on how
  /// tensors travel asks for capabilities() instead.
  const std::string& backend() const;
  /// Returns what the group can do with tensors of a device.
  Capabilities capabilities(Device device) const;
  /// Returns why CUDA tensors are staged through the hosts; empty where they are not.
  std::string why_staged() const;
  std::chrono::milliseconds timeout() const;
  Traffic traffic() const;
  /// Returns whether collectives do anything at all, as in a group of several ranks.
  bool communicates() const;
  bool operator==(const ProcessGroup& other) const { return backend_ == other.backend_; }

  /// Sets tensor = op over the ranks' tensors, in place and to the same bits on every rank. The
  /// tensor may have any strides but may not be expanded.
  Work all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::sum,
                  CallOptions options = {}) const;
  /// Sets output[r] = the input of rank r. `output` has shape (size(), input.shape...).
  Work all_gather(const Tensor& input, const Tensor& output, CallOptions options = {}) const;
  /// Sets tensor = the tensor of rank `root`.
  Work broadcast(const Tensor& tensor, int root = 0, CallOptions options = {}) const;
  /// Sets output = op over the ranks' input[rank()]. `input` has shape (size(), output.shape...).
  Work reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op = ReduceOp::sum,
                      CallOptions options = {}) const;
  /// Returns when every rank has called it.
  void barrier(CallOptions options = {}) const;
  /// Meets the other ranks in place of a call that this rank refuses to issue, because of `why`,
  /// which the other ranks read: so nobody waits for it. Where all ranks refuse theirs, the group
  /// stays usable; otherwise every rank gets an error that shows both sides.
  void refuse(CallOptions call, const std::string& why) const;
  /// Runs the checks of the arguments of `call`, and refuses it before their error leaves.
  template <class Checks>
  void check_together(const char* call, const Checks& checks) const {
    try {
      checks();
    } catch (const Error& error) {
      refuse({.name = std::string("refused ") + call}, error.what());
      throw;
    }
  }

  /// Makes a group of the ranks with the same `color`, ordered by (key, rank). Every rank of this
  /// group calls it. A rank with a negative color joins none; it gets a group that throws when it
  /// is used.
  ProcessGroup split(int color, int key = 0) const;
  /// Makes a group of the ranks of this group that share this rank's host, named "world/host0",
  /// ...: hosts are numbered by their first rank. Every rank of this group calls it. MPI tells
  /// hosts apart, which asks for shared memory. TUTTI_RANKS_PER_HOST=k lets ranks 0 to k - 1 of the
  /// world count as the first host, the next k as the second, and so on.
  ProcessGroup split_by_host() const;
  /// Makes groups of `ranks` ranks that follow each other in this group, named "world/part0", ...;
  /// the last one may have fewer. Every rank of this group calls it. Throws a ValueError for
  /// `ranks` below 1.
  ProcessGroup split_by_size(int ranks) const;
  /// Returns a group of the same ranks with a communicator of its own. Normalization statistics go
  /// through it, so that they never wait behind a gradient bucket.
  const ProcessGroup& for_normalization() const;

  /// Fails the group for every rank: their waits and every later call throw `cause`. A rank that
  /// cannot go on calls it, so that the others need not wait for their deadline.
  void abort(const std::string& cause) const;

  const std::shared_ptr<Backend>& implementation() const { return backend_; }

 private:
  ProcessGroup split_as(const char* kind, int color, int key) const;
  // `members` are the ranks of this group as `parent` numbers them.
  void add_normalization(Backend& parent, const std::vector<int>& members);

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<ProcessGroup> normalization_;
};

/// Returns the group that run_ranks() made for this thread or from_environment() for this process;
/// where there is none, a group of one.
const ProcessGroup& world();

/// Returns the variables that a launcher has set, for a process that says that it is alone: "RANK=0
/// WORLD_SIZE=1". Empty where there are none.
std::string launch_variables();

/// The options of run_ranks().
struct RunOptions {
  std::chrono::milliseconds timeout = ProcessGroup::default_timeout;
  /// Whether CUDA tensors may travel by NCCL, as in WorldOptions. Rank r then has the device
  /// first_device + r.
  bool nccl = true;
  int first_device = 0;
  /// If positive, CPU tensors are added as the mpi backend does where each host has so many ranks:
  /// in rank order inside a host, then host by host.
  int ranks_per_host = 0;
};
/// Runs fn(group) on `n` ranks that are threads of this process, with world() set in each, and
/// returns when all have ended. The exception that was thrown first is thrown again here; the other
/// ranks get it as a DistributedError, so none of them hangs in a collective. It is also printed
/// where a rank hangs elsewhere, because then this function does not return. Throws a ValueError
/// for `n` below 1, an empty `fn`, or a negative `ranks_per_host` or `first_device`.
void run_ranks(int n, const std::function<void(const ProcessGroup&)>& fn,
               const RunOptions& options);
/// @overload
void run_ranks(int n, const std::function<void(const ProcessGroup&)>& fn,
               std::chrono::milliseconds timeout = ProcessGroup::default_timeout);

}  // namespace tutti::distributed

namespace tutti {
using distributed::ProcessGroup;
}
