// run_ranks: runs a function on ranks that are threads of this process. It starts and joins the
// threads and passes the first exception on. A thread that hangs cannot be ended, so the first
// exception is printed where a rank does not return after it.
#include "../../core/parallel.h"
#include "../../core/random.h"
#include "../../core/trace.h"
#include "../backends/local/local.h"
#include "devices.h"
#include "launch.h"

#include <condition_variable>
#include <cstdio>
#include <exception>
#include <map>
#include <thread>

namespace tutti::distributed {
namespace {

// What the threads of the ranks tell the thread that waits for them.
class Outcome {
 public:
  explicit Outcome(int ranks) : running_(all_ranks(ranks)) {}

  void failed(int rank, const std::string& what) {
    const std::lock_guard lock(mutex_);
    failures_.emplace(rank, std::current_exception());
    if (failures_.size() > 1) return;
    first_ = rank;
    text_ = fmt::format("rank {} failed: {}", rank, what);
    changed_.notify_all();
  }
  void returned(int rank) {
    const std::lock_guard lock(mutex_);
    std::erase(running_, rank);
    changed_.notify_all();
  }
  // Throws the first exception, once all ranks have returned: that of the rank which has failed the
  // world, if one has. Others may have seen its end before it.
  void rethrow(const std::optional<Failure>& failure) const {
    if (failures_.empty()) return;
    const auto cause = failures_.find(failure ? failure->rank : -1);
    std::rethrow_exception(cause != failures_.end() ? cause->second : failures_.at(first_));
  }

  // Waits until all ranks have returned. Prints the first exception where one does not return
  // within `patience` of it: the caller would not see it before that rank returns.
  void wait(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    const auto all_returned = [&] { return running_.empty(); };
    changed_.wait(lock, [&] { return !failures_.empty() || all_returned(); });
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
  std::map<int, std::exception_ptr> failures_;  // by rank
  int first_ = 0;                               // of them, by time
  std::string text_;
};

void check_arguments(int n, const std::function<void(const ProcessGroup&)>& fn,
                     const RunOptions& options) {
  if (n < 1) fail<ValueError>("run_ranks: expected at least 1 rank, got {}", n);
  if (!fn)
    fail<ValueError>("run_ranks: expected a function to run on every rank, got an empty one");
  check_timeout("run_ranks", options.timeout);
  for (const auto& [name, value] : {std::pair("ranks_per_host", options.ranks_per_host),
                                    std::pair("first_device", options.first_device)})
    if (value < 0) fail<ValueError>("run_ranks: expected {} of at least 0, got {}", name, value);
}

}  // namespace

void run_ranks(int n, const std::function<void(const ProcessGroup&)>& fn,
               const RunOptions& options) {
  check_arguments(n, fn, options);
  const int threads_each = std::max(1, num_threads() / n);
  Outcome outcome(n);
  auto groups = local::make_world({.size = n, .timeout = options.timeout}, options.ranks_per_host);
  const std::shared_ptr<World> world = groups[0]->world();
  set_devices_of_threads(*world, n, options.first_device, options.nccl);
  const auto failed = [&](int rank) {
    const std::string what = text_of(std::current_exception());
    outcome.failed(rank, what);
    world->fail({.what = fmt::format("rank {} failed: {}", rank, what), .rank = rank});
  };
  const auto run = [&](int rank) {
    try {
      set_num_threads(threads_each);
      manual_seed(0);  // as in a rank that is a process
      trace::name_thread("main", rank);
      const ProcessGroup group(std::move(groups[static_cast<std::size_t>(rank)]));
      const ThreadWorld scope(group);
      try {
        fn(group);
      } catch (...) {
        failed(rank);  // before the group is destroyed
      }
    } catch (...) {
      failed(rank);
    }
    world->depart(rank);
    outcome.returned(rank);
  };
  const auto finish = [&] {
    const auto patience =
        std::min<std::chrono::milliseconds>(options.timeout, std::chrono::seconds(10));
    world->wait_for_devices(options.timeout);
    world->end_lanes(patience);
    world->watcher().stop();
  };
  std::vector<std::jthread> ranks;
  try {
    for (int rank = 0; rank < n; ++rank) ranks.emplace_back(run, rank);
  } catch (const std::exception& error) {
    const std::string why =
        fmt::format("no thread for rank {} of {}: {}", ranks.size(), n, error.what());
    world->fail({.what = why});
    ranks.clear();  // joins those that had started, which the failure has released
    finish();
    fail<DistributedError>("run_ranks: {}", why);
  }
  outcome.wait(std::min<std::chrono::milliseconds>(options.timeout, std::chrono::seconds(5)));
  ranks.clear();  // joins
  finish();
  outcome.rethrow(world->failure());
}

void run_ranks(int n, const std::function<void(const ProcessGroup&)>& fn,
               std::chrono::milliseconds timeout) {
  run_ranks(n, fn, RunOptions{.timeout = timeout});
}

}  // namespace tutti::distributed
