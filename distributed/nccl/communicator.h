// Communicator: one of NCCL's, non-blocking: no call waits inside of NCCL, so that whoever waits can give up. NCCL wants
// its calls on one communicator one at a time, and each finished before the next: both are seen to here.
#pragma once

#include "../../core/error.h"

#include <nccl.h>

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
  Communicator() = default;
  ~Communicator() { abort(); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Collective: of the ranks that got this id, on the calling thread's current device.
  void join(const ncclUniqueId& id, int rank, int size, const Poll& poll);
  /// Collective among the ranks of `parent`: of those with the same colour, ordered by key. NCCL_SPLIT_NOCOLOR: of none.
  void split(Communicator& parent, int color, int key, const Poll& poll);

  /// run(name, call): call(comm) is a call of NCCL's that enqueues something. What it enqueued is on its stream on return.
  /// The first calls of a kind set up connections, which waits for the other ranks, and polls.
  template <class Call>
  void run(const char* name, const Call& call, const Poll& poll) {
    const std::lock_guard lock(mutex_);
    if (!comm_) fail<DistributedError>("{}: the communicator has been aborted", name);
    finish(call(comm_), name, comm_, poll);
  }

  /// Announces memory that will be sent often, so that NCCL may do without buffers of its own. Null where it will not.
  void* register_memory(void* data, std::size_t bytes);
  /// Takes that back. False where another thread is in a call: later, then.
  bool deregister(void* registration);

  /// What went wrong meanwhile; empty where nothing did, or where another thread is in a call.
  std::string asynchronous_error();
  /// Ends what is under way on the device, here, and frees the communicator. Waits for no other rank.
  void abort();

 private:
  static void finish(ncclResult_t result, const char* name, ncclComm_t comm, const Poll& poll);

  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace tutti::distributed::nccl
