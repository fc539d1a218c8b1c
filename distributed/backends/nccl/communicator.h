// Communicator: one of NCCL's, non-blocking: its calls are polled, so that whoever waits can give
// up. Only its end waits inside of NCCL: for the device, and until no graph holds it; so it has a
// thread of its own. NCCL wants its calls on one communicator one at a time, and each finished
// before the next: both are seen to here.
#pragma once

#include "../../../core/error.h"

#include <nccl.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace tutti::distributed::nccl {

/// Called between two looks at something that takes its time; throws to give up.
using Poll = std::function<void()>;

/// DistributedError that names the call, unless `result` is ncclSuccess.
void check(ncclResult_t result, const char* call, ncclComm_t comm = nullptr);

class Communicator {
 public:
  explicit Communicator(int device) : device_(device) {}
  /// Waits for its end.
  ~Communicator() { abort(); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Collective: of the ranks that got this id, on its device, which is the calling thread's
  /// current one.
  void join(const ncclUniqueId& id, int rank, int size, const Poll& poll);
  /// Collective among the ranks of `parent`: of those with the same colour, ordered by key.
  /// NCCL_SPLIT_NOCOLOR: of none.
  void split(Communicator& parent, int color, int key, const Poll& poll);

  /// run(name, call): call(comm) is a call of NCCL's that enqueues something. What it enqueued is
  /// on its stream on return. The first calls of a kind set up connections, which waits for the
  /// other ranks, and polls.
  template <class Call>
  void run(const char* name, const Call& call, const Poll& poll) {
    const std::lock_guard lock(mutex_);
    if (!comm_) fail<DistributedError>("{}: the communicator has been aborted", name);
    finish(call(comm_), name, comm_, poll);
  }

  /// Announces memory that will be sent often, so that NCCL may do without buffers of its own. Null
  /// where it will not.
  void* register_memory(void* data, std::size_t bytes);
  /// Takes that back. False where another thread is in a call, or while it is ending: later, then.
  bool deregister(void* registration);

  /// What went wrong meanwhile; empty where nothing did, or where another thread is in a call.
  std::string asynchronous_error();
  /// Ends what is under way on the device, here, at once, and begins to free the communicator.
  /// Waits for no other rank, nor for that.
  void abort();
  /// It has been aborted, but is not free yet: kernels may still run, or a graph holds it.
  bool ending() const { return ending_; }

 private:
  static void finish(ncclResult_t result, const char* name, ncclComm_t comm, const Poll& poll);

  const int device_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  ncclComm_t child_ =
      nullptr;  // where NCCL puts what is split off, be it after this side has given up
  std::atomic<bool> ending_ = false;
  std::jthread end_;
};

}  // namespace tutti::distributed::nccl
