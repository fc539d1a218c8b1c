// Communicator: an NCCL communicator in non-blocking mode. Its calls are polled, so that a rank
// that waits can give up. Only freeing it blocks inside NCCL, for the device and until no graph
// holds it, so that happens on a thread of its own. NCCL wants the calls on one communicator one at
// a time, each finished before the next; this class ensures both.
#pragma once

#include "../../../core/error.h"

#include <nccl.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace tutti::distributed::nccl {

/// Called between two polls of an NCCL call in progress; throws to give up.
using Poll = std::function<void()>;

/// Throws a DistributedError that names the call, unless `result` is ncclSuccess.
void check(ncclResult_t result, const char* call, ncclComm_t comm = nullptr);

class Communicator {
 public:
  explicit Communicator(int device) : device_(device) {}
  /// Aborts the communicator and waits until it is free.
  ~Communicator() { abort(); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Creates the communicator of the ranks that got this id. All of them call it, each on a thread
  /// whose current device is the communicator's.
  void join(const ncclUniqueId& id, int rank, int size, const Poll& poll);
  /// Creates the communicator of the ranks of `parent` with the same color, ordered by key. All
  /// ranks of `parent` call it; with NCCL_SPLIT_NOCOLOR a rank joins none.
  void split(Communicator& parent, int color, int key, const Poll& poll);

  /// Runs call(comm), a function of NCCL called `name` that enqueues a collective, and returns when
  /// the collective is on its stream. The first calls of a kind set up connections, which waits for
  /// the other ranks and polls.
  template <class Call>
  void run(const char* name, const Call& call, const Poll& poll) {
    const std::lock_guard lock(mutex_);
    if (!comm_) fail<DistributedError>("{}: the communicator has been aborted", name);
    finish(call(comm_), name, comm_, poll);
  }

  /// Registers memory that will be sent often, so that NCCL may do without buffers of its own.
  /// Returns null where NCCL refuses.
  void* register_memory(void* data, std::size_t bytes);
  /// Undoes register_memory(). Returns false where another thread is in a call or the communicator
  /// is being freed; then it must be tried again later.
  bool deregister(void* registration);

  /// Returns the error that NCCL reports; an empty text where there is none, or where another
  /// thread is in a call.
  std::string asynchronous_error();
  /// Stops the communicator's kernels on this rank's device and starts to free the communicator.
  /// Waits neither for other ranks nor until it is free.
  void abort();
  /// Returns whether it has been aborted but is not free yet: kernels may still run, or a graph
  /// holds it.
  bool ending() const { return ending_; }

 private:
  static void finish(ncclResult_t result, const char* name, ncclComm_t comm, const Poll& poll);

  const int device_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  // Where ncclCommSplit stores the new communicator, which it may do after this rank has given up.
  ncclComm_t child_ = nullptr;
  std::atomic<bool> ending_ = false;
  std::jthread end_;
};

}  // namespace tutti::distributed::nccl
