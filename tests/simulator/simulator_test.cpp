// The MPI backend of the library over the simulator: whole jobs of 2 to 1,024 ranks in virtual
// time, and jobs in which something goes wrong.
#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/core/hash.h>
#include <tutti/core/parallel.h>
#include <tutti/distributed/backends/mpi/mpi.h>
#include <tutti/distributed/launch/launch.h>
#include <tutti/distributed/process_group.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>

#include "job.h"

#include <gtest/gtest.h>

namespace tutti::simulator {
namespace {

using namespace std::chrono_literals;

constexpr auto timeout = 5s;
constexpr std::int64_t channels = 6, samples = 2;

std::uint64_t hash_of(const Tensor& tensor, std::uint64_t seed) {
  Hash64 hash;
  hash.add(seed);
  hash.add(std::string_view(static_cast<const char*>(tensor.raw()),
                            static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype())));
  return hash.value();
}

// The program of a rank: it joins the world, takes a step of SyncBatchNorm, and reduces a bucket.
std::uint64_t train(int rank, int size) {
  set_num_threads(1);
  const ProcessGroup group(
      distributed::mpi::make_world({.rank = rank, .expected_size = size, .timeout = timeout}));
  mark();
  nn::SyncBatchNorm layer({.channels = channels, .dtype = float64, .group = group});
  const Tensor x =
      (arange(samples * channels * 4, {float64}).reshape({samples, channels, 2, 2}) * 0.5 +
       static_cast<double>(rank % 7))
          .detach()
          .requires_grad_();
  const Tensor y = layer.forward(x);
  y.backward(ones(y.shape(), {float64}));
  mark();
  const Tensor bucket = ones({40'000}, {float32});
  group.all_reduce(bucket, distributed::ReduceOp::sum).wait();
  if (bucket.select(0, 39'999).item<int>() != size) throw std::runtime_error("a wrong sum");
  mark();
  return hash_of(bucket, hash_of(layer.running_var, hash_of(layer.running_mean, 0)));
}

Job simulate_training(const Layout& layout, std::uint64_t seed) {
  const int size = layout.ranks();
  return simulate(layout, seed, 120 * second, [&](int rank) { return train(rank, size); });
}

void expect_success(const Job& job) {
  ASSERT_FALSE(job.was_ended) << job.ranks[0].lines;
  for (std::size_t r = 0; r < job.ranks.size(); ++r) {
    ASSERT_TRUE(job.ranks[r].has_exited) << r << job.ranks[r].error << job.waits;
    ASSERT_EQ(job.ranks[r].state, Outcome::State::succeeded) << job.ranks[r].error;
    ASSERT_EQ(job.ranks[r].result, job.ranks[0].result) << r;
    ASSERT_STREQ(job.ranks[r].lines, "") << r;
  }
}

TEST(Simulator, AJobSucceedsOnHostsOfAnySizes) {
  for (const std::vector<int>& hosts :
       {std::vector{2}, {8}, {1, 1}, {3, 1}, {3, 3, 2}, {8, 8, 8, 8}, {7, 8, 1, 8, 3, 5}})
    expect_success(simulate_training({.host_sizes = hosts}, 1));
}

// Prints what a job of so many ranks, 8 on each host, costs: one row of the table in
// docs/scaling.md.
void print_costs(const Job& job) {
  constexpr const char* phases[] = {"start", "layer", "bucket", "exit"};
  const std::size_t ranks = job.ranks.size();
  std::string row = fmt::format("| {} |", ranks);
  for (std::size_t p = 0; p < std::size(phases); ++p) {
    Time last = 0, before = 0;
    std::int64_t messages = 0, bytes = 0, most = 0;
    for (const Outcome& rank : job.ranks) {
      const Mark now = rank.mark[p], then = p == 0 ? Mark() : rank.mark[p - 1];
      last = std::max(last, now.at);
      before = std::max(before, then.at);
      messages += now.traffic.messages - then.traffic.messages;
      bytes += now.traffic.bytes - then.traffic.bytes;
      most = std::max(most, now.traffic.messages - then.traffic.messages);
    }
    row += fmt::format(" {}, {}, {:.0f}, {:.2f} |", messages, most, 1e-3 * double(bytes),
                       1e-6 * double(last - before));
  }
  std::size_t most_peers = 0;
  for (const Outcome& rank : job.ranks) most_peers = std::max(most_peers, rank.peers);
  std::printf("%s %zu |\n", row.c_str(), most_peers);
}

TEST(Simulator, Scale) {
  for (int ranks = 2; ranks <= 1024; ranks *= 2) {
    std::vector<int> hosts(static_cast<std::size_t>((ranks + 7) / 8), std::min(ranks, 8));
    const Job job = simulate_training({.host_sizes = hosts}, 1);
    expect_success(job);
    print_costs(job);
  }
}

}  // namespace
}  // namespace tutti::simulator
