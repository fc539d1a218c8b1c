// Watcher: a thread that calls one function every 50 ms. World uses it to keep the deadlines of
// collectives that nobody waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

namespace tutti::distributed {

/// A thread that calls a function at intervals.
class Watcher {
 public:
  /// `check` must not throw. It may destroy the watcher.
  explicit Watcher(std::function<void()> check);
  /// Waits for a call of `check` in progress, unless it is called by that very call.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace tutti::distributed
