#include "communicator.h"

#include <chrono>
#include <utility>

namespace tutti::distributed::nccl {
namespace {

ncclConfig_t non_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

}  // namespace

void check(ncclResult_t result, const char* call, ncclComm_t comm) {
  if (result == ncclSuccess) return;
  const char* details = ncclGetLastError(comm);
  fail<DistributedError>("{} failed: {}{}{}", call, ncclGetErrorString(result),
                         details && *details ? ": " : "", details ? details : "");
}

// NCCL enqueues each collective on a thread of its own, which is soon done: so this polls many
// times before it sleeps.
void Communicator::finish(ncclResult_t result, const char* name, ncclComm_t comm,
                          const Poll& poll) {
  for (int polls = 0; result == ncclInProgress; ++polls) {
    poll();
    if (polls > 2000) std::this_thread::sleep_for(std::chrono::microseconds(50));
    else std::this_thread::yield();
    check(ncclCommGetAsyncError(comm, &result), "ncclCommGetAsyncError", comm);
  }
  check(result, name, comm);
}

void Communicator::join(const ncclUniqueId& id, int rank, int size, const Poll& poll) {
  const std::lock_guard lock(mutex_);
  ncclConfig_t config = non_blocking();
  const ncclResult_t result = ncclCommInitRankConfig(&comm_, size, id, rank, &config);
  if (!comm_) check(result, "ncclCommInitRankConfig");
  finish(result, "ncclCommInitRankConfig", comm_, poll);
}

void Communicator::split(Communicator& parent, int color, int key, const Poll& poll) {
  const std::scoped_lock lock(mutex_, parent.mutex_);
  if (!parent.comm_) fail<DistributedError>("ncclCommSplit: the communicator has been aborted");
  ncclConfig_t config = non_blocking();
  // NCCL reports the progress of the split on the parent; the child exists only afterwards.
  finish(ncclCommSplit(parent.comm_, color, key, &parent.child_, &config), "ncclCommSplit",
         parent.comm_, poll);
  comm_ = std::exchange(parent.child_, nullptr);
  if (!comm_) return;
  ncclResult_t result = ncclSuccess;
  check(ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError", comm_);
  finish(result, "ncclCommSplit", comm_, poll);
}

void* Communicator::register_memory(void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  void* registration = nullptr;
  return comm_ && ncclCommRegister(comm_, data, bytes, &registration) == ncclSuccess ? registration
                                                                                     : nullptr;
}

bool Communicator::deregister(void* registration) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || ending_) return false;
  if (comm_ && registration)
    ncclCommDeregister(comm_, registration);  // an aborted communicator has no registrations
  return true;
}

std::string Communicator::asynchronous_error() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !comm_) return {};
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
  if (asked != ncclSuccess) result = asked;
  if (result == ncclSuccess || result == ncclInProgress) return {};
  const char* details = ncclGetLastError(comm_);
  return fmt::format("NCCL reports: {}{}{}", ncclGetErrorString(result),
                     details && *details ? ": " : "", details ? details : "");
}

void Communicator::abort() {
  const std::lock_guard lock(mutex_);
  if (!comm_) return;
  ending_ = true;
  end_ = std::jthread([this, comm = std::exchange(comm_, nullptr)] {
    // Must not disturb a graph that another thread captures.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaSetDevice(device_);
    ncclCommAbort(comm);  // an error changes nothing: there is no other way to free it
    if (child_) ncclCommAbort(child_);
    ending_ = false;
  });
}

}  // namespace tutti::distributed::nccl
