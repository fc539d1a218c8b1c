#include "bulk.h"

#include "../../../core/trace.h"
#include "../../diagnostics/fault_injection.h"

namespace tutti::distributed::mpi {

class Bulk::TaskWork : public Work::State {
 public:
  TaskWork(std::shared_ptr<Bulk> bulk, std::shared_ptr<Task> task)
      : bulk_(std::move(bulk)), task_(std::move(task)) {}
  void wait() override {
    std::unique_lock lock(bulk_->mutex_);
    while (!task_->done) {
      if (bulk_->threaded_) bulk_->changed_->wait(lock);  // the thread keeps the deadline
      else bulk_->run_next(lock);
    }
    if (task_->error) std::rethrow_exception(task_->error);
  }
  bool is_done() override {
    const std::lock_guard lock(bulk_->mutex_);
    return task_->done;
  }
  std::chrono::steady_clock::time_point done_at() const override { return task_->done_at; }

 private:
  std::shared_ptr<Bulk> bulk_;
  std::shared_ptr<Task> task_;
};

Bulk::Bulk(std::shared_ptr<const GroupCommunicator> comm, Backend::Place place,
           std::shared_ptr<std::atomic<std::int64_t>> met)
    : comm_(std::move(comm)),
      place_(std::move(place)),
      met_(std::move(met)),
      threaded_(threads_allowed()) {}

Bulk::~Bulk() {
  if (process_ != process_generation()) {
    // A fork's child has no such thread. The lock may be held for ever, and who destroys a
    // condition waits for its waiters.
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

std::shared_ptr<Work::State> Bulk::submit(const Collective& call,
                                          std::unique_ptr<Exchange> exchange) {
  const auto task = std::make_shared<Task>(Task{call, std::move(exchange)});
  const std::lock_guard lock(mutex_);
  queue_.push_back(task);
  if (threaded_) ++under_way();
  if (threaded_ && !thread_.joinable()) thread_ = std::thread([this] { loop(); });
  changed_->notify_all();
  return std::make_shared<TaskWork>(shared_from_this(), task);
}

void Bulk::loop() {
  trace::name_thread("communication of " + place_.group);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_->wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    run_next(lock);
  }
}

void Bulk::run_next(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Task> task = queue_.front();
  lock.unlock();
  run(*task);
  lock.lock();
  queue_.pop_front();
  task->done = true;
  task->done_at = std::chrono::steady_clock::now();
  changed_->notify_all();
  if (threaded_) --under_way();
}

void Bulk::run(Task& task) {
  const std::shared_lock mpi(in_use(), std::try_to_lock);
  if (!mpi) {
    // MPI is being finalised, or has been: not even the other ranks are told, and the messages stay
    // as they are.
    const std::string why = describe(task.call, place_) + ": this process is at its exit";
    task.error = std::make_exception_ptr(DistributedError(why));
    keep_for_ever(std::shared_ptr<Exchange>(std::move(task.exchange)));
    return;
  }
  try {
    {
      const trace::Span span([&] { return "until all have come: " + task.call.name; });
      meet(*task.exchange, task.call, place_, *met_, threaded_, deadline_after(task.call.timeout));
    }
    task.exchange.reset();
    faults::inject(Fault::Moment::data, place_.rank, place_.group, task.call.sequence);
    const trace::Span span([&] { return "transfer: " + task.call.name; });
    move_data(*comm_, task.call, place_);
  } catch (const std::exception& e) {
    task.error = std::current_exception();
    // No effect where it has failed already.
    comm_->domain().fail({.at = describe(task.call, place_), .what = e.what()});
    task.exchange.reset();
  }
}

}  // namespace tutti::distributed::mpi
