#include "onednn_exit.h"

#include "../../core/error.h"
#include "../../core/parallel.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_set>

namespace tutti::kernels::cpu::onednn {
namespace {

// Lets threads through until it is closed.
class Gate {
 public:
  bool enter() {
    ++inside_;
    if (!is_closed_) return true;
    --inside_;
    return false;
  }
  void leave() { --inside_; }
  /// Waits for those inside, for a second at most.
  void close() {
    is_closed_ = true;
    for (int i = 0; i < 1000 && inside_ > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::atomic<int> inside_{0};
  std::atomic<bool> is_closed_{false};
};

// exit() ends the thread-local objects of its thread, then it runs handlers and ends static
// objects, in the reverse order of how they came to be. A handler that is registered after a call
// runs before what the call made is destroyed. What another thread makes during the exit would be
// destroyed at once: where the main thread exits, its thread-local objects keep others from that.
constinit Gate all_calls, calls_that_compile;
constinit thread_local bool exits = false;  // this thread ends the process

struct EndsCompiling {
  ~EndsCompiling() {
    if (!tutti::detail::is_main_thread()) return;
    exits = true;
    calls_that_compile.close();
  }
};
thread_local const EndsCompiling ends_compiling;
[[maybe_unused]] const auto* const of_main_thread = &ends_compiling;

void end_calls() {
  exits = true;
  all_calls.close();
}

// The plans that have run in this process, of which another thread compiles nothing new. Their
// number is bounded, so that a program which keeps using new shapes does not run out of memory.
struct FinishedPlans {
  static constexpr std::size_t most = 100'000;
  std::mutex mutex;
  std::unordered_set<std::size_t> hashes;
};
FinishedPlans& finished_plans() {
  static auto* const plans = new FinishedPlans;  // never destroyed
  return *plans;
}

bool has_finished(std::size_t plan) {
  const std::lock_guard lock(finished_plans().mutex);
  return finished_plans().hashes.contains(plan);
}

// Registers end_calls() once for a plan.
void end_calls_at_exit(std::size_t plan) {
  const std::lock_guard lock(finished_plans().mutex);
  auto& hashes = finished_plans().hashes;
  if (hashes.size() < FinishedPlans::most && hashes.insert(plan).second) std::atexit(end_calls);
}

}  // namespace

CallBeforeExit::CallBeforeExit(const char* op, const std::string& plan, bool is_first)
    : plan_(is_first ? std::hash<std::string>()(plan) : 0),
      may_compute_(!exits),
      compiles_(is_first && !has_finished(plan_)) {
  if (!may_compute_) return;
  // The process should end during the sleep, unless its main thread alone has ended.
  enters_to_compile_ = compiles_ && calls_that_compile.enter();
  if (compiles_ && !enters_to_compile_) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (all_calls.enter()) return;
  if (enters_to_compile_) calls_that_compile.leave();
  std::this_thread::sleep_for(std::chrono::seconds(10));
  fail<Error>("{}: not computed, because the process is exiting", op);
}

CallBeforeExit::~CallBeforeExit() {
  if (!may_compute_) return;
  if (compiles_ && std::uncaught_exceptions() == exceptions_) end_calls_at_exit(plan_);
  if (enters_to_compile_) calls_that_compile.leave();
  all_calls.leave();
}

}  // namespace tutti::kernels::cpu::onednn
