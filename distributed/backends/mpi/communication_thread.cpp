#include "communication_thread.h"

#include "../../../core/trace.h"
#include "../../diagnostics/fault_injection.h"
#include "library.h"

namespace tutti::distributed::mpi {

class CommunicationThread::TaskWork : public WorkState {
 public:
  TaskWork(std::shared_ptr<CommunicationThread> thread, std::shared_ptr<Task> task)
      : thread_(std::move(thread)), task_(std::move(task)) {}
  void wait() override {
    std::unique_lock lock(thread_->mutex_);
    task_->for_waiter = task_->for_waiter || !thread_->threaded_;
    while (!task_->done) {
      if (!thread_->running_ && task_->for_waiter) {
        thread_->run_next(lock);  // which may be a call before this one
      } else {
        ++thread_->waiting_;
        thread_->changed_->wait(lock);
        --thread_->waiting_;
      }
    }
    if (task_->error) std::rethrow_exception(task_->error);
  }
  bool is_done() override {
    std::unique_lock lock(thread_->mutex_);
    if (!thread_->threaded_ || !thread_->take_unwaited_tasks())
      while (!task_->done && !thread_->running_ && thread_->front_can_run())
        thread_->run_next(lock);
    return task_->done;
  }
  Clock::time_point done_at() const override { return task_->done_at; }

 private:
  std::shared_ptr<CommunicationThread> thread_;
  std::shared_ptr<Task> task_;
};

CommunicationThread::CommunicationThread(std::shared_ptr<const HostCommunicators> comms)
    : comms_(std::move(comms)), threaded_(allows_threads()) {
  if (!threaded_ || comms_->layout().is_one_host()) return;  // one host has large calls only
  unwaited_tasks_ = watch(comms_->world().watcher(), [this] {
    const std::lock_guard lock(mutex_);
    take_unwaited_tasks();
    return false;
  });
}

CommunicationThread::~CommunicationThread() {
  if (process_.is_of_parent()) {
    // The child of a fork has no such thread. The mutex may be locked there with nobody to unlock
    // it, and the destructor of a condition variable waits for its waiters.
    if (thread_.joinable()) thread_.detach();
    (void)changed_.release();
    return;
  }
  unwaited_tasks_.reset();
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_->notify_all();
    if (threaded_ && !queue_.empty() && !start_thread())
      while (!queue_.empty()) run_next(lock);
  }
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<WorkState> CommunicationThread::submit(std::unique_ptr<Exchange> exchange) {
  const auto task = std::make_shared<Task>();
  task->for_waiter = exchange->has_data();
  task->exchange = std::move(exchange);
  const std::lock_guard lock(mutex_);
  queue_.push_back(task);
  if (threaded_) ++process().unfinished_collectives;
  if (threaded_ && !task->for_waiter && !start_thread()) task->for_waiter = true;
  return std::make_shared<TaskWork>(shared_from_this(), task);
}

// Returns false where the system has no thread for it.
bool CommunicationThread::start_thread() {
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error&) {
    return false;
  }
  changed_->notify_all();
  return true;
}

// Returns false where there is no thread for them: then those that wait carry them out.
bool CommunicationThread::take_unwaited_tasks() {
  if (queue_.empty() || running_) return true;
  if (!start_thread()) return false;
  for (const auto& task : queue_) task->for_waiter = false;
  return true;
}

// Returns whether there is a call for the communication thread, which then carries out all before
// it too.
bool CommunicationThread::has_task() const {
  return !running_ && std::any_of(queue_.begin(), queue_.end(),
                                  [&](const auto& task) { return stopping_ || !task->for_waiter; });
}

// Returns whether the ranks of this host have come to the first call, or never will.
bool CommunicationThread::front_can_run() const {
  Exchange& exchange = *queue_.front()->exchange;
  return exchange.poll() || comms_->world().poll() || comms_->world().give_up(exchange);
}

void CommunicationThread::loop() {
  trace::name_thread("communication of " + comms_->info().group);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_->wait(lock, [&] { return has_task() || (stopping_ && queue_.empty()); });
    if (queue_.empty()) return;
    run_next(lock);
  }
}

void CommunicationThread::run_next(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Task> task = queue_.front();
  running_ = true;
  lock.unlock();
  run(*task, std::this_thread::get_id() == thread_.get_id());
  lock.lock();
  running_ = false;
  queue_.pop_front();
  task->done = true;
  task->done_at = Clock::now();
  if (waiting_ > 0 || has_task() || stopping_) changed_->notify_all();
  if (threaded_) --process().unfinished_collectives;
}

void CommunicationThread::run(Task& task, bool patient) {
  const Collective& call = task.exchange->call();
  const std::shared_lock mpi(process().usage, std::try_to_lock);
  if (!mpi || !is_usable()) {
    // MPI is being finalised or has been: the other ranks cannot be told, and the messages stay as
    // they are.
    const std::string why = describe(call, comms_->info()) + ": MPI has been finalised";
    task.error = std::make_exception_ptr(DistributedError(why));
    never_free(std::shared_ptr<Exchange>(std::move(task.exchange)));
    return;
  }
  try {
    HostCollective collective(comms_, *task.exchange, patient);
    task.exchange->restart_deadline();
    if (collective.is_small()) {
      collective.complete();
    } else {
      {
        const trace::Span span([&] { return "wait for all ranks: " + call.options.name; });
        collective.agree();
      }
      faults::inject(Fault::Moment::data, comms_->info().rank, comms_->info().group, call.sequence);
      const trace::Span span([&] { return "transfer: " + call.options.name; });
      collective.move();
    }
    task.exchange.reset();
  } catch (const std::exception& error) {
    task.error = std::current_exception();
    comms_->world().fail({.at = describe(call, comms_->info()), .what = error.what()});
    task.exchange.reset();
  }
}

}  // namespace tutti::distributed::mpi
