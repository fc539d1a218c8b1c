// run_ranks: runs a function on ranks that are threads of this process. It starts and joins the
// threads and passes the first exception on; the backend makes the world. A thread that hangs
// cannot be ended, so the first exception is printed where a rank does not return after it.
#include "../../core/parallel.h"
#include "../../core/random.h"
#include "../../core/trace.h"
#include "../backends.h"
#include "launch.h"

#include <condition_variable>
#include <cstdio>
#include <exception>
#include <thread>

namespace tutti::distributed {
namespace {

// The backend that is asked for, which must have ranks that are threads.
const BackendEntry& backend_of_threads(const std::string& name) {
  std::string known;
  for (const BackendEntry& entry : backends()) {
    if (!entry.make_thread_ranks) continue;
    known += (known.empty() ? "" : " or ") + std::string(entry.name);
    if (name != entry.name) continue;
    if (const std::string why = entry.why_unavailable(); !why.empty())
      fail<DistributedError>("run_ranks: the {} backend cannot be used here: {}", name, why);
    return entry;
  }
  fail<ValueError>("run_ranks: unknown backend '{}': expected {}", name, known);
}

// What the threads of the ranks tell the thread that waits for them.
class Outcome {
 public:
  explicit Outcome(int ranks) : running_(all_ranks(ranks)) {}

  void failed(int rank, const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (first_) return;
    first_ = std::current_exception();
    text_ = fmt::format("rank {} failed: {}", rank, what);
    changed_.notify_all();
  }
  void returned(int rank) {
    const std::lock_guard lock(mutex_);
    std::erase(running_, rank);
    changed_.notify_all();
  }
  std::exception_ptr first() const { return first_; }  // by time, once all ranks have returned

  // Waits until all ranks have returned. Prints the first exception where one does not return
  // within `patience` of it: the caller would not see it before that rank returns.
  void wait(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    const auto all_returned = [&] { return running_.empty(); };
    changed_.wait(lock, [&] { return first_ || all_returned(); });
    if (changed_.wait_for(lock, patience, all_returned)) return;
    const std::string text = fmt::format(
        "tutti: run_ranks: {}\ntutti: run_ranks: {} not returned within {} of that; run_ranks() "
        "waits until all ranks have\n",
        text_, ranks_to_string(running_) + (running_.size() == 1 ? " has" : " have"),
        to_string(patience));
    std::fputs(text.c_str(), stderr);
    changed_.wait(lock, all_returned);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> running_;
  std::exception_ptr first_;
  std::string text_;
};

}  // namespace

void run_ranks(int n, const std::function<void(const ProcessGroup&)>& fn,
               const RunOptions& options) {
  if (n < 1) fail<ValueError>("run_ranks: expected at least 1 rank, got {}", n);
  if (!fn)
    fail<ValueError>("run_ranks: expected a function to run on every rank, got an empty one");
  check_timeout("run_ranks", options.timeout);
  if (options.ranks_per_host < 0)
    fail<ValueError>("run_ranks: expected ranks_per_host of at least 0, got {}",
                     options.ranks_per_host);
  const int threads_each = std::max(1, num_threads() / n);
  Outcome outcome(n);
  const RanksAsThreads world =
      backend_of_threads(options.backend)
          .make_thread_ranks(
              {.ranks = n, .timeout = options.timeout, .ranks_per_host = options.ranks_per_host});
  const auto failed = [&](int rank) {
    const std::string what = text_of(std::current_exception());
    outcome.failed(rank, what);
    world.fail({.what = fmt::format("rank {} failed: {}", rank, what)});
  };
  const auto run = [&](int rank) {
    try {
      set_num_threads(threads_each);
      manual_seed(0);  // as in a rank that is a process
      trace::name_thread("main", rank);
      const ProcessGroup group(world.join(rank));
      const ThreadWorld scope(group);
      try {
        fn(group);
      } catch (...) {
        failed(rank);  // before the group is destroyed, which may wait for the others
      }
    } catch (...) {
      failed(rank);
    }
    world.depart(rank);
    outcome.returned(rank);
  };
  std::vector<std::jthread> ranks;
  try {
    for (int rank = 0; rank < n; ++rank) ranks.emplace_back(run, rank);
  } catch (const std::exception& error) {
    const std::string why =
        fmt::format("no thread for rank {} of {}: {}", ranks.size(), n, error.what());
    world.fail({.what = why});
    ranks.clear();  // joins those that had started, which the failure has released
    world.finish();
    fail<DistributedError>("run_ranks: {}", why);
  }
  outcome.wait(std::min<std::chrono::milliseconds>(options.timeout, std::chrono::seconds(5)));
  ranks.clear();  // joins
  world.finish();
  if (outcome.first()) std::rethrow_exception(outcome.first());
}

void run_ranks(int n, const std::function<void(const ProcessGroup&)>& fn,
               std::chrono::milliseconds timeout) {
  run_ranks(n, fn, RunOptions{.timeout = timeout});
}

}  // namespace tutti::distributed
