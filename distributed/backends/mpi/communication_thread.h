// CommunicationThread: carries out the collectives of one group that need more than their exchange,
// one after the other. MPI does not make progress by itself, and a gradient bucket has to move
// while backward still computes: so a thread of its own carries out large collectives. A small one
// is carried out by the thread that waits for it, because waking another thread would cost more
// than its messages; where nobody waits soon, the watcher hands it to the communication thread, and
// is_done() does so at once.
#pragma once

#include "../../../core/fork.h"
#include "host_collective.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <thread>

namespace tutti::distributed::mpi {

class CommunicationThread : public std::enable_shared_from_this<CommunicationThread> {
 public:
  explicit CommunicationThread(std::shared_ptr<const HostCommunicators> comms);
  ~CommunicationThread();

  /// Queues a call whose exchange has been posted. Where MPI forbids a second thread, wait() and
  /// is_done() carry out every call.
  std::shared_ptr<WorkState> submit(std::unique_ptr<Exchange> exchange);

 private:
  struct Task {
    std::unique_ptr<Exchange> exchange;
    bool for_waiter = false;  // until the watcher or a poll finds that nobody waits
    bool done = false;
    Clock::time_point done_at = {};
    std::exception_ptr error = {};
  };
  class TaskWork;

  bool has_task() const;
  bool front_can_run() const;
  bool start_thread();
  bool take_unwaited_tasks();
  void loop();
  void run_next(std::unique_lock<std::mutex>& lock);
  void run(Task& task, bool patient);

  std::shared_ptr<const HostCommunicators> comms_;
  const bool threaded_;
  const ProcessMark process_;
  std::mutex mutex_;
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::deque<std::shared_ptr<Task>> queue_;
  int waiting_ = 0;       // threads whose call another one carries out
  bool running_ = false;  // some thread carries out the front of the queue
  bool stopping_ = false;
  std::thread thread_;  // started by the first call that needs it
  // Lets the watcher hand calls for which nobody waits to the thread.
  std::shared_ptr<void> unwaited_tasks_;
};

}  // namespace tutti::distributed::mpi
