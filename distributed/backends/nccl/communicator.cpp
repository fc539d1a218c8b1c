#include "communicator.h"

#include <chrono>
#include <utility>

namespace tutti::distributed::nccl {
namespace {

using namespace std::chrono_literals;

// How long a thread may stay inside the call of a collective that is aborted. Calls that wait for
// nothing are over in microseconds.
constexpr auto longest_call = 1s;

ncclConfig_t config_of(bool is_blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = is_blocking ? 1 : 0;
  return config;
}

// Waits until a call on a communicator that does not block is over.
void finish(ncclResult_t result, const char* name, ncclComm_t comm, const Poll& poll) {
  for (int polls = 0; result == ncclInProgress; ++polls) {
    poll();
    if (polls > 2000) std::this_thread::sleep_for(50us);
    else std::this_thread::yield();
    check(ncclCommGetAsyncError(comm, &result), "ncclCommGetAsyncError");
  }
  check(result, name);
}

}  // namespace

void check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  const char* details = ncclGetLastError(nullptr);  // NCCL does not use the argument
  fail<DistributedError>("{} failed: {}{}{}", call, ncclGetErrorString(result),
                         details && *details ? ": " : "", details ? details : "");
}

void Communicator::connect(const ncclUniqueId& id, int rank, int size, int channels,
                           const Poll& poll) {
  const std::lock_guard lock(polls_);
  ncclConfig_t config = config_of(false);
  config.minCTAs = config.maxCTAs = 1;  // it carries no collectives, so it needs few buffers
  ncclComm_t setup = nullptr;
  const ncclResult_t result = ncclCommInitRankConfig(&setup, size, id, rank, &config);
  if (!setup) check(result, "ncclCommInitRankConfig");
  setup_ = setup;
  finish(result, "ncclCommInitRankConfig", setup, poll);
  config = config_of(true);
  config.maxCTAs = channels;
  // NCCL reports the progress of the split on the parent; the child exists only afterwards.
  finish(ncclCommSplit(setup, 0, rank, &child_, &config), "ncclCommSplit", setup, poll);
  comm_ = std::exchange(child_, nullptr);
}

std::string Communicator::asynchronous_error() {
  const std::unique_lock lock(calls_, std::try_to_lock);
  const ncclComm_t comm = comm_;
  if (!lock || !comm) return {};
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm, &result);
  if (asked != ncclSuccess) result = asked;
  if (result == ncclSuccess || result == ncclInProgress) return {};
  const char* details = ncclGetLastError(comm);
  return fmt::format("NCCL reports: {}{}{}", ncclGetErrorString(result),
                     details && *details ? ": " : "", details ? details : "");
}

// On two threads, because freeing one communicator may wait for kernels of the other.
void Communicator::abort() {
  const std::lock_guard lock(polls_);
  if (comm_) start(collectives_end_, &Communicator::end_collectives);
  if (setup_) start(setup_end_, &Communicator::end_setup);
}

void Communicator::start(std::jthread& thread, void (Communicator::*end)()) {
  if (thread.joinable()) return;  // it has been started before
  ++threads_;
  try {
    thread = std::jthread([this, end] {
      cudaSetDevice(device_);  // before any call that would make a context on device 0
      // Must not disturb a graph that another thread captures.
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      cudaThreadExchangeStreamCaptureMode(&mode);
      (this->*end)();
      --threads_;
    });
  } catch (...) {
    --threads_;
    throw;
  }
}

// NCCL frees at once what a thread inside a call on a communicator that blocks may still use. So
// this waits for the thread; only one that does not come back is interrupted. Later calls find
// comm_ null. They must not wait for the lock, because ncclCommAbort returns only when no graph
// holds the communicator, and their thread may be the one that destroys the graph.
void Communicator::end_collectives() {
  const ncclComm_t comm = comm_.exchange(nullptr);
  std::unique_lock lock(calls_, std::defer_lock);
  for (const auto until = std::chrono::steady_clock::now() + longest_call;
       !lock.try_lock() && std::chrono::steady_clock::now() < until;)
    std::this_thread::sleep_for(1ms);
  if (lock) lock.unlock();
  ncclCommAbort(comm);  // an error changes nothing: there is no other way to free it
}

// A thread that polls setup_ must give up before it is freed, and none may use it afterwards.
void Communicator::end_setup() {
  ncclComm_t setup = nullptr;
  {
    const std::lock_guard lock(polls_);
    setup = std::exchange(setup_, nullptr);
  }
  ncclCommAbort(setup);               // a split under way stores its child before this returns
  if (child_) ncclCommAbort(child_);  // no connect() touches it without setup_
}

}  // namespace tutti::distributed::nccl
