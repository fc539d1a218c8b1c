#include "thread_pool.h"

#include "parallel.h"
#include "scoped_value.h"
#include "thread_owned.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

namespace tutti::detail {
namespace {

// A number of 32 bits that threads wait for. A thread that waits looks at it for some microseconds,
// which is as long as most gaps between two loops, and then sleeps.
class Signal {
 public:
  using Clock = std::chrono::steady_clock;

  std::uint32_t load() const { return value_.load(); }
  void store(std::uint32_t value) { value_.store(value); }
  void add(int n) { value_.fetch_add(static_cast<std::uint32_t>(n)); }
  /// Returns the value after the subtraction.
  std::uint32_t subtract_one() { return value_.fetch_sub(1) - 1; }
  /// Wakes sleepers so that `wanted` of the `all` threads that use the signal are awake. Those that
  /// it wakes count as awake from now on.
  void wake(int wanted, int all) {
    const int missing = wanted - all + sleepers_.load();
    if (missing > 0) sleepers_ -= futex(FUTEX_WAKE_PRIVATE, static_cast<std::uint32_t>(missing));
  }
  /// Returns once the value is not `old`. Sleeps from 50 us after `idle_since` on, which becomes
  /// the time of waking.
  void wait_while(std::uint32_t old, Clock::time_point& idle_since) {
    constexpr std::chrono::microseconds spin_time{50};
    do {
      for (int i = 0; i < 16; ++i) {
        if (value_.load() != old) return;
        pause();
      }
    } while (Clock::now() - idle_since < spin_time);
    ++sleepers_;
    while (value_.load() == old)
      if (futex(FUTEX_WAIT_PRIVATE, old) == 0) ++sleepers_;  // wake() has subtracted it
    --sleepers_;
    idle_since = Clock::now();
  }

 private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  int futex(int operation, std::uint32_t value) {
    return static_cast<int>(syscall(SYS_futex, &value_, operation, value, nullptr, nullptr, 0));
  }

  std::atomic<std::uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
};
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

// The helpers of one thread, and the loop that it runs.
class Pool {
 public:
  // Loops of a thread's other objects, which may end after this one, are serial.
  ~Pool() { end(), in_share = true; }

  void run(int shares, ShareBody body, void* context) {
    start(shares - 1);
    body_ = body;
    context_ = context;
    unfinished_.store(static_cast<std::uint32_t>(shares));
    const std::uint64_t number = (loop_.load() >> 32) + 1;
    loop_.store(number << 32 | static_cast<std::uint64_t>(shares) << 16);
    loops_.add(1);
    loops_.wake(shares - 1, static_cast<int>(helpers_.size()));
    {
      const ScopedValue scope(in_share, true);
      while (run_one_share()) continue;
    }
    auto idle_since = Signal::Clock::now();
    for (std::uint32_t left; (left = unfinished_.load()) > 0;)
      unfinished_.wait_while(left, idle_since);
    is_failed_ = false;
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  void end() {
    ends_ = true;
    loops_.add(1);
    loops_.wake(static_cast<int>(helpers_.size()), static_cast<int>(helpers_.size()));
    for (std::thread& helper : helpers_) helper.join();
    helpers_.clear();
    ends_ = false;
  }

 private:
  // Starts helpers until there are as many, or the system has no more threads or memory: then their
  // shares are left to the others. Signals are left to the threads of the program.
  void start(int helpers) {
    if (static_cast<int>(helpers_.size()) >= helpers) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      while (static_cast<int>(helpers_.size()) < helpers) helpers_.emplace_back([this] { help(); });
    } catch (const std::exception&) {}
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void help() {
    const OneOpenMPThread one;
    in_share = true;
    auto idle_since = Signal::Clock::now();
    while (!ends_) {
      const std::uint32_t loops = loops_.load();  // before the look at the loop
      while (run_one_share()) idle_since = Signal::Clock::now();
      if (!ends_) loops_.wait_while(loops, idle_since);
    }
  }

  // Takes a share that nobody has begun. Returns whether there was one. The loop cannot end, and
  // its body cannot change, while a share of it is not finished.
  bool run_one_share() {
    std::uint64_t loop = loop_.load();
    int share = 0, shares = 0;
    do {
      share = static_cast<int>(loop & 0xffff), shares = static_cast<int>(loop >> 16 & 0xffff);
      if (share >= shares) return false;
    } while (!loop_.compare_exchange_weak(loop, loop + 1));
    try {
      body_(share, shares, context_);
    } catch (...) {
      if (!is_failed_.exchange(true)) error_ = std::current_exception();
    }
    if (unfinished_.subtract_one() == 0) unfinished_.wake(1, 1);
    return true;
  }

  std::atomic<std::uint64_t> loop_{0};  // its number, its shares (16 bits) and the next share
  Signal loops_;                        // the number of loops that have begun
  Signal unfinished_;                   // the shares of the loop that have not ended
  ShareBody body_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> is_failed_{false}, ends_{false};
  std::exception_ptr error_;
  std::vector<std::thread> helpers_;
};

}  // namespace

void run_shares(int shares, ShareBody body, void* context) {
  shares = std::min(shares, 0xffff);
  if (!in_share) {
    ++loop_count.loops;
    loop_count.shares += shares;
    return of_thread<Pool>().run(shares, body, context);
  }
  const ScopedValue scope(in_share, true);
  for (int share = 0; share < shares; ++share) body(share, shares, context);
}

void end_helpers() {
  if (!in_share) of_thread<Pool>().end();
}

}  // namespace tutti::detail
