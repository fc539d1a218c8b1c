// Communicator: the two NCCL communicators of a group. Collectives run on one that blocks, which
// enqueues them on the calling thread. NCCL can stop safely only what it runs on a thread of its
// own, so everything that sets communicators up goes through a second one, which does not block:
// its calls are polled, so that a rank that waits can give up, and ncclCommAbort ends them at any
// time. Freeing blocks inside NCCL, for the device and until no graph holds the communicator, so
// that happens on a thread of its own. NCCL wants the calls on one communicator one at a time, each
// finished before the next; this class ensures both. The second one lives as long as the first,
// because a rank that has done its part of the set-up may not end it while another has not.
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
void check(ncclResult_t result, const char* call);

class Communicator {
 public:
  explicit Communicator(int device) : device_(device) {}
  /// Aborts the communicator and waits until it is free.
  ~Communicator() { abort(); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Sets both communicators up. All ranks that got this id call it once, each on a thread whose
  /// current device is the communicator's. The one for collectives has at most `channels` channels,
  /// each of which takes buffers and a multiprocessor; with NCCL_CONFIG_UNDEF_INT, as many as NCCL
  /// chooses.
  void connect(const ncclUniqueId& id, int rank, int size, int channels, const Poll& poll);

  /// Runs call(comm), a function of NCCL called `name` that enqueues a collective, and returns when
  /// the collective is on its stream. Waits for other ranks only where NCCL still has something to
  /// set up with them; abort() ends that too.
  template <class Call>
  void run(const char* name, const Call& call) {
    const std::lock_guard lock(calls_);
    const ncclComm_t comm = comm_;
    if (!comm) fail<DistributedError>("{}: the communicator has been aborted", name);
    check(call(comm), name);
  }

  /// Returns the error that NCCL reports; an empty text where there is none, or where another
  /// thread is in a call.
  std::string asynchronous_error();
  /// Stops the communicator's kernels on this rank's device and starts to free the communicator.
  /// Waits for a thread inside connect() until its poll gives up or the call is over, but neither
  /// for a thread inside run(), nor until the communicator is free.
  void abort();
  /// Returns whether it has been aborted but is not free yet: kernels may still run, or a graph
  /// holds it.
  bool is_ending() const { return threads_ > 0; }

 private:
  void start(std::jthread& thread, void (Communicator::*end)());
  void end_collectives();
  void end_setup();

  const int device_;
  std::mutex calls_;                        // held during the calls on comm_
  std::atomic<ncclComm_t> comm_ = nullptr;  // blocks; runs the collectives
  std::mutex polls_;                        // held during the calls on setup_, and guards it
  ncclComm_t setup_ = nullptr;  // does not block; null before connect() and after abort()
  // Where ncclCommSplit stores the new communicator, which it may do after this rank has given up,
  // until setup_ has been aborted.
  ncclComm_t child_ = nullptr;
  std::atomic<int> threads_ = 0;  // those of the next two that are still busy
  std::jthread collectives_end_, setup_end_;
};

}  // namespace tutti::distributed::nccl
