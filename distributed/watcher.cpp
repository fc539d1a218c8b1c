#include "watcher.h"

#include "../core/fork.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace tutti::distributed {

using namespace std::chrono_literals;

struct Watcher::State {
  std::function<void()> check;
  ProcessMark process;
  std::mutex mutex;
  std::condition_variable stop;
  bool stopping = false;
};

Watcher::Watcher(std::function<void()> check) : state_(std::make_shared<State>()) {
  state_->check = std::move(check);
  thread_ = std::thread([state = state_] {
    std::unique_lock lock(state->mutex);
    while (!state->stop.wait_for(lock, 50ms, [&] { return state->stopping; })) {
      lock.unlock();
      state->check();
      lock.lock();
    }
  });
}

Watcher::~Watcher() {
  // The child of a fork has no such thread, and the mutex may be locked there with nobody to
  // unlock it.
  if (state_->process.is_of_parent()) {
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

}  // namespace tutti::distributed
