// Watcher: a thread of a world that checks every 50 ms what has been given to it, so that deadlines
// hold and notices arrive while no thread of the caller waits. It knows neither ranks nor failures:
// what a check does is up to its Watched.
#pragma once

#include "../core/fork.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

namespace tutti::distributed {

/// Something that a Watcher checks until it is done.
class Watched {
 public:
  virtual ~Watched() = default;
  /// Lets what is watched make progress, and fails the world where it will never be done. Does not
  /// wait for other ranks. Returns true when there is nothing left to check.
  virtual bool check() noexcept = 0;

 private:
  friend class Watcher;
  std::optional<std::list<std::shared_ptr<Watched>>::iterator> position_;
};

/// Keeps what it watches, and checks it on a thread that the first watch() starts.
class Watcher {
 public:
  /// The thread calls `round` every 50 ms, which calls check(), or does not where it must not now.
  /// `round` throws nothing and may destroy the watcher. If it is empty, there is no thread.
  explicit Watcher(std::function<void()> round);
  ~Watcher();

  /// Keeps `watched` and checks it until it is done or unwatched. Starts the thread, unless stop()
  /// was called.
  void watch(const std::shared_ptr<Watched>& watched);
  void unwatch(Watched& watched);
  /// Checks all that is watched.
  void check();
  /// Ends the thread after a check in progress. No later watch() starts it again.
  void stop();

 private:
  std::function<void()> round_;
  std::mutex mutex_;
  std::list<std::shared_ptr<Watched>> watched_;
  struct Thread;  // hides std::jthread, which libc++ has from version 20 on
  std::unique_ptr<Thread> thread_;
  ProcessMark process_;
  // Atomic instead of guarded by mutex_, because the destructor also runs in the child of a fork,
  // where that mutex may stay locked.
  std::atomic<bool> stopped_ = false;
};

/// Lets a watcher call a function until the result is destroyed, which waits for a call in
/// progress. The function is Watched::check() and throws nothing.
[[nodiscard]] std::shared_ptr<void> watch(Watcher& watcher, std::function<bool()> check);

}  // namespace tutti::distributed
