// BlockingCall: the deadline of a call that blocks inside MPI, where no exception can end the wait.
// A thread stands beside the call. At the deadline it says on standard error which rank waits
// where and for whom, and ends the job.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace tutti::distributed::mpi {

/// Who this process is in the messages of BlockingCall, and how long its calls may block.
struct BlockingCallDefaults {
  int rank = 0;
  std::chrono::milliseconds timeout{0};
};
void set_blocking_call_defaults(const BlockingCallDefaults& defaults);

/// While the object lives, this thread is inside `call`, which every rank of `whom` has to make.
/// Where it lives longer than the timeout, the process prints a line and ends with exit code 1,
/// and the job with it. The other ranks that wait have a second to print their lines.
class BlockingCall {
 public:
  /// `call` is a string literal such as "MPI_Finalize"; `whom` is "all 4 processes" or "ranks 0
  /// and 2 of group 'world'". Without a `timeout`, that of set_blocking_call_defaults() holds.
  BlockingCall(const char* call, std::string whom, std::chrono::milliseconds timeout = {});
  ~BlockingCall();
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;

 private:
  struct Watch;
  std::unique_ptr<Watch> watch_;  // null where the system has no thread for it
};

}  // namespace tutti::distributed::mpi
