// BlockingCall: the deadline of a call that blocks inside MPI, where no exception can end the wait.
// A thread stands beside the call. At the deadline it says on standard error which rank waits
// where and for whom, and ends the job.
#pragma once

#include <chrono>
#include <string>
#include <thread>

namespace tutti::distributed::mpi {

/// While the object lives, this thread is inside `call`, which every rank of `whom` has to make.
/// Where it lives longer than the timeout, the process prints a line and ends with exit code 1,
/// and the job with it. The other ranks that wait have a second to print their lines.
class BlockingCall {
 public:
  /// `call` is a string literal such as "MPI_Finalize"; `whom` is "all 4 processes" or "ranks 0
  /// and 2 of group 'world'". Without a `timeout`, Process::timeout holds.
  BlockingCall(const char* call, std::string whom, std::chrono::milliseconds timeout = {});
  ~BlockingCall();

 private:
  std::jthread thread_;  // none where the system has no thread for it
};

}  // namespace tutti::distributed::mpi
