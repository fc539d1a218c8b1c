#include "watcher.h"

#include <condition_variable>
#include <thread>
#include <utility>
#include <vector>

namespace tutti::distributed {

bool sleep_unless_stopped(const std::stop_token& stop, std::chrono::milliseconds time) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  return stopped.wait_for(lock, stop, time, [&] { return stop.stop_requested(); });
}

// Its own thread may destroy it; any other that does waits for a check in progress.
class Watcher::Thread {
 public:
  explicit Thread(std::function<void()> round)
      : thread_([round = std::move(round)](const std::stop_token& stop) {
          while (!sleep_unless_stopped(stop, std::chrono::milliseconds(50))) round();
        }) {}
  ~Thread() {
    const bool is_forked = process_.is_of_parent();  // the child of a fork has no such thread
    if (!is_forked) thread_.request_stop();
    if (is_forked || thread_.get_id() == std::this_thread::get_id()) thread_.detach();
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

 private:
  std::jthread thread_;
  ProcessMark process_;
};

Watcher::Watcher(std::function<void()> round) : round_(std::move(round)) {}

Watcher::~Watcher() { stop(); }

void Watcher::watch(const std::shared_ptr<Watched>& watched) {
  const std::lock_guard here(mutex_);
  // The thread comes first: where there is none, `watched` may be destroyed and must not be kept.
  if (!thread_ && round_ && !stopped_) thread_ = std::make_unique<Thread>(round_);
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

void Watcher::stop() {
  stopped_ = true;
  thread_.reset();
}

// Its own lock makes the destructor of the scope wait for a call in progress.
struct WatchScope::Function : Watched {
  bool check() noexcept override {
    const std::lock_guard lock(mutex);
    return !function || function();
  }
  std::mutex mutex;
  std::function<bool()> function;
};

WatchScope::WatchScope(Watcher& watcher, std::function<bool()> check)
    : function_(std::make_shared<Function>()) {
  function_->function = std::move(check);
  watcher.watch(function_);
}

WatchScope::~WatchScope() {
  if (process_.is_of_parent()) return;  // the mutex may be locked in the child of a fork
  const std::lock_guard lock(function_->mutex);
  function_->function = nullptr;
}

}  // namespace tutti::distributed
