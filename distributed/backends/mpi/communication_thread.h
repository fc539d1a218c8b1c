// CommunicationThread: carries out the large collectives of one group, one after the other, on a
// thread and a communicator of its own. MPI does not make progress by itself, and a gradient bucket
// has to move while backward still computes. The ranks first agree on the call (Exchange), then
// move_data() moves its data.
#pragma once

#include "../../fork.h"
#include "exchange.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <thread>

namespace tutti::distributed::mpi {

class CommunicationThread : public std::enable_shared_from_this<CommunicationThread> {
 public:
  explicit CommunicationThread(std::shared_ptr<const GroupCommunicator> comm);
  ~CommunicationThread();

  /// Queues a call whose exchange has been posted. Where MPI forbids a second thread, wait()
  /// carries it out.
  std::shared_ptr<Work::State> submit(std::unique_ptr<Exchange> exchange);

 private:
  struct Task {
    Collective call;
    std::unique_ptr<Exchange> exchange;
    bool done = false;
    Clock::time_point done_at = {};
    std::exception_ptr error = {};
  };
  class TaskWork;

  void loop();
  void run_next(std::unique_lock<std::mutex>& lock);
  void run(Task& task);

  std::shared_ptr<const GroupCommunicator> comm_;
  const bool threaded_;
  const ProcessMark process_;
  std::mutex mutex_;
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::deque<std::shared_ptr<Task>> queue_;
  bool stopping_ = false;
  std::thread thread_;  // started by the first call
};

}  // namespace tutti::distributed::mpi
