#include "communication_thread.h"

#include "../../../core/trace.h"
#include "../../diagnostics/fault_injection.h"
#include "library.h"
#include "move_data.h"

namespace tutti::distributed::mpi {

class CommunicationThread::TaskWork : public Work::State {
 public:
  TaskWork(std::shared_ptr<CommunicationThread> thread, std::shared_ptr<Task> task)
      : thread_(std::move(thread)), task_(std::move(task)) {}
  void wait() override {
    std::unique_lock lock(thread_->mutex_);
    while (!task_->done) {
      if (thread_->threaded_) thread_->changed_->wait(lock);  // the thread keeps the deadline
      else thread_->run_next(lock);
    }
    if (task_->error) std::rethrow_exception(task_->error);
  }
  bool is_done() override {
    const std::lock_guard lock(thread_->mutex_);
    return task_->done;
  }
  Clock::time_point done_at() const override { return task_->done_at; }

 private:
  std::shared_ptr<CommunicationThread> thread_;
  std::shared_ptr<Task> task_;
};

CommunicationThread::CommunicationThread(std::shared_ptr<const GroupCommunicator> comm)
    : comm_(std::move(comm)), threaded_(allows_threads()) {}

CommunicationThread::~CommunicationThread() {
  if (process_.is_of_parent()) {
    // The child of a fork has no such thread. The mutex may be locked there with nobody to unlock
    // it, and the destructor of a condition variable waits for its waiters.
    if (thread_.joinable()) thread_.detach();
    (void)changed_.release();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_->notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Work::State> CommunicationThread::submit(std::unique_ptr<Exchange> exchange) {
  const auto task = std::make_shared<Task>();
  task->call = exchange->call();
  task->exchange = std::move(exchange);
  const std::lock_guard lock(mutex_);
  queue_.push_back(task);
  if (threaded_) ++unfinished_collectives();
  if (threaded_ && !thread_.joinable()) thread_ = std::thread([this] { loop(); });
  changed_->notify_all();
  return std::make_shared<TaskWork>(shared_from_this(), task);
}

void CommunicationThread::loop() {
  trace::name_thread("communication of " + comm_->info().group);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_->wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    run_next(lock);
  }
}

void CommunicationThread::run_next(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Task> task = queue_.front();
  lock.unlock();
  run(*task);
  lock.lock();
  queue_.pop_front();
  task->done = true;
  task->done_at = Clock::now();
  changed_->notify_all();
  if (threaded_) --unfinished_collectives();
}

void CommunicationThread::run(Task& task) {
  const std::shared_lock mpi(usage_mutex(), std::try_to_lock);
  if (!mpi) {
    // MPI is being finalised or has been: the other ranks cannot be told, and the messages stay as
    // they are.
    const std::string why = describe(task.call, comm_->info()) + ": this process is exiting";
    task.error = std::make_exception_ptr(DistributedError(why));
    never_free(std::shared_ptr<Exchange>(std::move(task.exchange)));
    return;
  }
  try {
    {
      const trace::Span span([&] { return "wait for all ranks: " + task.call.name; });
      task.exchange->restart_deadline();
      task.exchange->wait_for_agreement(threaded_);
    }
    task.exchange.reset();
    faults::inject(Fault::Moment::data, comm_->info().rank, comm_->info().group,
                   task.call.sequence);
    const trace::Span span([&] { return "transfer: " + task.call.name; });
    move_data(*comm_, task.call);
  } catch (const std::exception& error) {
    task.error = std::current_exception();
    comm_->world().fail({.at = describe(task.call, comm_->info()), .what = error.what()});
    task.exchange.reset();
  }
}

}  // namespace tutti::distributed::mpi
