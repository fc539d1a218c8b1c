// ProcessGroup: a set of ranks that compute collectives together. A value handle on a backend:
// ranks that are threads of one process (local/), processes on any number of hosts (mpi/), or GPUs
// (nccl/). This header is all that a user sees of any of them; it knows tensors, and neither
// gradients nor modules.
//
// Every member of a group must issue the same collectives in the same order. Every wait has a
// deadline; on failure every rank gets a DistributedError that names the collective, its number and
// the rank at fault.
#pragma once

#include "../core/create.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tutti::distributed {

class Backend;  // what an implementation provides: backend.h

enum class ReduceOp { sum, mean, min, max };

std::string to_string(ReduceOp op);

/// What may be said about one call. `name` is what it is for (a layer, a bucket) and stands in
/// every error; a zero `timeout` means the group's.
struct CallOptions {
  std::string name = {};
  std::chrono::milliseconds timeout{0};
};

/// A collective under way. Leave its tensors alone until wait(), in which with nccl the device
/// waits and not the host.
class [[nodiscard]] Work {
 public:
  struct State {
    virtual ~State() = default;
    virtual void wait() = 0;     ///< returns when done; throws what went wrong, TimeoutError at the
                                 ///< deadline
    virtual bool is_done() = 0;  ///< never blocks; true also when it failed
    /// Asked after wait(): when it was done, where that is known better than by the return of
    /// wait().
    virtual std::chrono::steady_clock::time_point done_at() const { return {}; }
  };

  Work() = default;  ///< already done
  explicit Work(std::shared_ptr<State> state);
  /// Throws what went wrong; a DistributedError also in a fork's child, where nothing of its
  /// parent's will ever be done.
  void wait();
  bool is_done() const;

 private:
  std::shared_ptr<State> state_;
  std::uint64_t process_ = 0;  ///< which has issued it
};

/// How many collectives this rank has issued in a group of several ranks, and the bytes of their
/// inputs.
struct Traffic {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
};

/// How from_environment() finds the world. What is left out comes from the launcher's variables.
struct WorldOptions {
  int rank = -1;  ///< together with world_size
  int world_size = 0;
  int local_rank = -1;
  /// "mpi" or "nccl"; empty: MPI where its launcher started us, else NCCL. One process alone is a
  /// group that does nothing, unless "nccl" asks for collectives all the same.
  std::string backend = {};
  /// Where NCCL ranks find each other: "HOST:PORT" of rank 0, or "file:PATH" that all hosts see.
  /// Empty: MASTER_ADDR and MASTER_PORT, else MPI tells.
  std::string rendezvous = {};
  std::string run_id =
      {};           ///< tells this run's processes from those of another; the same on every rank
  int device = -1;  ///< the CUDA device of this rank; negative: local_rank
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
};

class ProcessGroup {
 public:
  static constexpr std::chrono::milliseconds default_timeout{std::chrono::minutes(5)};

  /// The group of this rank alone: every collective is done at once and costs nothing.
  ProcessGroup();
  explicit ProcessGroup(std::shared_ptr<Backend> backend);

  /// The world this process was started in: by mpirun, srun or torchrun, or alone. Also makes it
  /// world(). `timeout` is how long any rank waits for the others: here (TimeoutError), in
  /// collectives that give none of their own, and at exit, where a rank that does not come to its
  /// end in that time ends the whole job. DistributedError that lists what was found where the
  /// launcher's variables are partial, contradict each other, or ask for a backend that is not
  /// there.
  static ProcessGroup from_environment(const WorldOptions& options);
  static ProcessGroup from_environment(std::chrono::milliseconds timeout = default_timeout);

  int rank() const;
  int size() const;
  int local_rank() const;              ///< among the ranks of this host
  const std::string& name() const;     ///< "world", "world/split", ...
  const std::string& backend() const;  ///< "single", "local", "mpi", "nccl"
  std::chrono::milliseconds timeout() const;
  Traffic traffic() const;
  /// Whether collectives do anything at all. In a group of one rank only NCCL's does, which was
  /// asked for then.
  bool communicates() const;
  bool operator==(const ProcessGroup& other) const { return backend_ == other.backend_; }

  /// Uninitialised memory for what is sent often: with nccl, on its device, registered for that;
  /// else as others are.
  Tensor empty(const Shape& shape, TensorOptions options) const;

  /// tensor = op over the ranks' tensors, in place, the same bits on every rank. Any strides.
  Work all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::sum,
                  CallOptions options = {}) const;
  /// output[r] = input of rank r. `output` has shape (size(), input.shape...).
  Work all_gather(const Tensor& input, const Tensor& output, CallOptions options = {}) const;
  /// tensor = the tensor of rank `root`.
  Work broadcast(const Tensor& tensor, int root = 0, CallOptions options = {}) const;
  /// output = op over the ranks' input[rank()]. `input` has shape (size(), output.shape...).
  Work reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op = ReduceOp::sum,
                      CallOptions options = {}) const;
  /// Returns when every rank has called it.
  void barrier(CallOptions options = {}) const;

  /// Collective. The ranks with the same `color` form a group, ordered by (key, rank). A negative
  /// colour joins none and gets a group that throws when used.
  ProcessGroup split(int color, int key = 0) const;
  /// The same ranks on a communicator of its own, made with the group: normalisation statistics go
  /// through it so that they never wait behind a gradient bucket.
  const ProcessGroup& for_normalization() const;

  /// Breaks the group for every rank: their waits, and every later call, fail with `cause`. For a
  /// rank that cannot go on, so that the others need not wait for their deadline.
  void abort(const std::string& cause) const;

  const std::shared_ptr<Backend>& implementation() const { return backend_; }

 private:
  std::shared_ptr<Backend> backend_;
  std::shared_ptr<ProcessGroup> normalization_;
};

/// The group that from_environment() made in this process, or run_ranks() for this thread; else a
/// group of one.
const ProcessGroup& world();

/// Runs fn(group) on `n` ranks that are threads of this process, with world() set in each, and
/// returns when all have ended. The first exception, by time, is thrown again; the other ranks get
/// it as a DistributedError, so none hangs.
struct RunOptions {
  std::string backend = "local";  ///< or "nccl": rank r on Device::cuda(r)
  std::chrono::milliseconds timeout = ProcessGroup::default_timeout;
};
void run_ranks(int n, const std::function<void(const ProcessGroup&)>& fn,
               const RunOptions& options);
void run_ranks(int n, const std::function<void(const ProcessGroup&)>& fn,
               std::chrono::milliseconds timeout = ProcessGroup::default_timeout);

}  // namespace tutti::distributed

namespace tutti {
using distributed::ProcessGroup;
}
