#include "watcher.h"

#include "stoppable_sleep.h"

#include <condition_variable>
#include <thread>
#include <vector>

namespace tutti::distributed {

bool sleep_unless_stopped(const std::stop_token& stop, std::chrono::milliseconds time) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  return stopped.wait_for(lock, stop, time, [&] { return stop.stop_requested(); });
}

struct Watcher::Thread : std::jthread {
  using jthread::jthread;
};

Watcher::Watcher(std::function<void()> round) : round_(std::move(round)) {}

Watcher::~Watcher() { stop(); }

void Watcher::watch(const std::shared_ptr<Watched>& watched) {
  const std::lock_guard here(mutex_);
  // The thread comes first: where there is none, `watched` may be destroyed and must not be kept.
  if (!thread_ && round_ && !stopped_)
    thread_ = std::make_unique<Thread>([round = round_](const std::stop_token& stop) {
      while (!sleep_unless_stopped(stop, std::chrono::milliseconds(50))) round();
    });
  watched->position_ = watched_.insert(watched_.end(), watched);
}

void Watcher::unwatch(Watched& watched) {
  const std::lock_guard here(mutex_);
  if (!watched.position_) return;
  watched_.erase(*watched.position_);
  watched.position_.reset();
}

void Watcher::check() {
  std::vector<std::shared_ptr<Watched>> all;
  {
    const std::lock_guard here(mutex_);
    all.assign(watched_.begin(), watched_.end());
  }
  for (const auto& watched : all)
    if (watched->check()) unwatch(*watched);
  // Releasing the last of them may destroy this object.
}

// Its own thread may destroy it; any other that does waits for a check in progress.
void Watcher::stop() {
  stopped_ = true;
  if (!thread_ || !thread_->joinable()) return;
  const bool is_forked = process_.is_of_parent();  // the child of a fork has no such thread
  if (!is_forked) thread_->request_stop();
  if (is_forked || thread_->get_id() == std::this_thread::get_id()) thread_->detach();
  else thread_->join();
}

namespace {

// Its own lock makes the end of the watch wait for a call in progress.
struct WatchedFunction : Watched {
  bool check() noexcept override {
    const std::lock_guard lock(mutex);
    return !function || function();
  }
  std::mutex mutex;
  std::function<bool()> function;
};

}  // namespace

std::shared_ptr<void> watch(Watcher& watcher, std::function<bool()> check) {
  const auto watched = std::make_shared<WatchedFunction>();
  watched->function = std::move(check);
  watcher.watch(watched);
  return {nullptr, [watched, process = ProcessMark()](void*) {
            if (process.is_of_parent()) return;  // the mutex may be locked in the child of a fork
            const std::lock_guard lock(watched->mutex);
            watched->function = nullptr;
          }};
}

}  // namespace tutti::distributed
