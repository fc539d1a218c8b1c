// Watcher: a thread that looks after collectives nobody waits for, so that they too keep their
// deadlines. Every 50 ms it calls one function; what there is to look at belongs to the backend.
#pragma once

#include <functional>
#include <memory>
#include <thread>

namespace tutti::distributed {

class Watcher {
 public:
  /// `look` must not throw. It may destroy the watcher.
  explicit Watcher(std::function<void()> look);
  /// Waits for a `look` in progress.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

/// A number that is another one in the child of a fork: groups, their threads and MPI belong to the
/// process that made them. Costs a load.
std::uint64_t process_generation();

}  // namespace tutti::distributed
