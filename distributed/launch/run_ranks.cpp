// run_ranks: one thread for each rank of a world in this process, which meets in a local hub or
// through NCCL.
#include "../../core/parallel.h"
#include "../../core/trace.h"
#include "../backends/local/hub.h"
#include "../backends/nccl/nccl.h"
#include "thread_world.h"

#include <exception>
#include <numeric>
#include <thread>

namespace tutti::distributed {
namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

// How the threads become ranks of one world, and tell each other what became of them.
struct Meet {
  std::function<std::shared_ptr<Backend>(int rank)> join;
  std::function<void(const Failure&)> fail;
  std::function<void(int rank)> leave;
  std::shared_ptr<Watcher> watcher;
};

Meet in_a_hub(int n, std::chrono::milliseconds timeout) {
  const auto domain = std::make_shared<local::Domain>(n);
  std::vector<int> everybody(static_cast<std::size_t>(n));
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto hub = std::make_shared<local::Hub>(domain, everybody, "world");
  return {.join =
              [=](int rank) {
                return std::make_shared<local::LocalBackend>(
                    hub, Backend::Place{rank, n, rank, "world", "local", timeout});
              },
          .fail = [domain](const Failure& why) { domain->fail(why); },
          .leave = [domain](int rank) { domain->leave(rank); },
          .watcher = n > 1 ? std::make_shared<Watcher>([domain] { domain->look(); }) : nullptr};
}

Meet through_nccl(int n, std::chrono::milliseconds timeout) {
  if (const std::string why = nccl::why_unavailable(); !why.empty())
    fail<DistributedError>("run_ranks: the nccl backend cannot be used here: {}", why);
  const auto table = std::make_shared<rendezvous::SharedTable>();
  return {.join =
              [=](int rank) {
                return nccl::make_world(rendezvous::in_memory(table, {rank, n, {}, timeout}),
                                        {.local_rank = rank});
              },
          .fail =
              [=](const Failure& why) {
                rendezvous::in_memory(table, {0, n})->fail(why);
              },
          .leave = [](int) {},  // whose group is gone is seen in the table
          .watcher = nullptr};
}

}  // namespace

void run_ranks(int n, const std::function<void(const ProcessGroup&)>& fn,
               const RunOptions& options) {
  if (n < 1) fail<ValueError>("run_ranks: expected at least 1 rank, got {}", n);
  if (options.backend != "local" && options.backend != "nccl")
    fail<ValueError>("run_ranks: unknown backend '{}': expected local or nccl", options.backend);
  const int threads_each = std::max(1, num_threads() / n);
  std::mutex mutex;
  std::exception_ptr first;
  const Meet meet = options.backend == "nccl" ? through_nccl(n, options.timeout)
                                              : in_a_hub(n, options.timeout);
  const auto failed = [&](int rank) {
    const std::string what = text_of(std::current_exception());
    {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
    }
    meet.fail({.what = fmt::format("rank {} failed: {}", rank, what)});
  };
  const auto run = [&](int rank) {
    try {
      set_num_threads(threads_each);
      trace::name_thread("main", rank);
      const ProcessGroup group(meet.join(rank));
      const ThreadWorld scope(group);
      try {
        fn(group);
      } catch (...) {
        failed(rank);  // before the group is destroyed, which may wait for the others
      }
    } catch (...) {
      failed(rank);
    }
    meet.leave(rank);
  };
  std::vector<std::jthread> ranks;
  try {
    for (int rank = 0; rank < n; ++rank) ranks.emplace_back(run, rank);
  } catch (const std::exception& error) {
    const std::string why =
        fmt::format("no thread for rank {} of {}: {}", ranks.size(), n, error.what());
    meet.fail({.what = why});
    ranks.clear();  // those that had started would have waited for the others
    fail<DistributedError>("run_ranks: {}", why);
  }
  ranks.clear();  // joins
  if (first) std::rethrow_exception(first);
}

void run_ranks(int n, const std::function<void(const ProcessGroup&)>& fn,
               std::chrono::milliseconds timeout) {
  run_ranks(n, fn, RunOptions{.timeout = timeout});
}

}  // namespace tutti::distributed
