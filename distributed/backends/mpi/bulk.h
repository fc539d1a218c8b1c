// Large collectives, on a thread and a communicator of their own, one after the other: MPI does not
// progress by itself, and a gradient bucket has to move while backward still computes. The ranks
// first agree on the call (see Exchange), then its data moves point to point: in an all-reduce rank
// r receives everybody's r-th part, reduces it in rank order and sends the result to everybody, so
// that each element travels twice and all ranks get the same bits.
#pragma once

#include "exchange.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <thread>

namespace tutti::distributed::mpi {

class Bulk : public std::enable_shared_from_this<Bulk> {
 public:
  Bulk(std::shared_ptr<const GroupCommunicator> comm, Backend::Place place,
       std::shared_ptr<std::atomic<std::int64_t>> met);
  ~Bulk();

  /// Queues a call whose exchange has been posted. Where MPI forbids a second thread, wait() does
  /// the work.
  std::shared_ptr<Work::State> submit(const Collective& call, std::unique_ptr<Exchange> exchange);

 private:
  struct Task {
    Collective call;
    std::unique_ptr<Exchange> exchange;
    bool done = false;
    std::chrono::steady_clock::time_point done_at = {};
    std::exception_ptr error = {};
  };
  class TaskWork;

  void loop();
  void run_next(std::unique_lock<std::mutex>& lock);
  void run(Task& task);

  std::shared_ptr<const GroupCommunicator> comm_;
  Backend::Place place_;
  std::shared_ptr<std::atomic<std::int64_t>> met_;
  const bool threaded_;
  const std::uint64_t process_ = process_generation();
  std::mutex mutex_;
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::deque<std::shared_ptr<Task>> queue_;
  bool stopping_ = false;
  std::thread thread_;  // started by the first call
};

/// Moves the data of a call on which all ranks agree. Throws, and breaks the domain, at the
/// deadline.
void move_data(const GroupCommunicator& comm, const Collective& call, const Backend::Place& place);

}  // namespace tutti::distributed::mpi
