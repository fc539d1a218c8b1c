#include "watcher.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace tutti::distributed {

using namespace std::chrono_literals;

struct Watcher::State {
  std::function<void()> look;
  std::uint64_t process = process_generation();
  std::mutex mutex;
  std::condition_variable stop;
  bool stopping = false;
};

Watcher::Watcher(std::function<void()> look) : state_(std::make_shared<State>()) {
  state_->look = std::move(look);
  thread_ = std::thread([state = state_] {
    std::unique_lock lock(state->mutex);
    while (!state->stop.wait_for(lock, 50ms, [&] { return state->stopping; })) {
      lock.unlock();
      state->look();
      lock.lock();
    }
  });
}

Watcher::~Watcher() {
  // A fork's child has no such thread, and the lock may be held for ever.
  if (state_->process != process_generation()) {
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->stop.notify_all();
  if (thread_.get_id() == std::this_thread::get_id()) thread_.detach();
  else thread_.join();
}

std::uint64_t process_generation() {
  static std::atomic<std::uint64_t> generation{0};
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { ++generation; });
  return generation.load(std::memory_order_relaxed);
}

}  // namespace tutti::distributed
