#include "training.h"

#include "operations.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/core/hash.h>
#include <tutti/core/parallel.h>
#include <tutti/distributed/backends/mpi/mpi.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>

#include <gtest/gtest.h>

namespace tutti::simulator {
namespace {

constexpr std::int64_t channels = 6, samples = 2;

std::uint64_t hash_of(const Tensor& tensor, std::uint64_t seed) {
  Hash64 hash;
  hash.add(seed);
  hash.add(std::string_view(static_cast<const char*>(tensor.raw()),
                            static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype())));
  return hash.value();
}

}  // namespace

ProcessGroup join_world(int rank, int size) {
  set_num_threads(1);
  ProcessGroup group(
      distributed::mpi::make_world({.rank = rank, .size = size, .timeout = timeout}));
  mark();
  return group;
}

namespace {

// The program of a rank: it joins the world, takes a step of SyncBatchNorm, and reduces a bucket.
std::uint64_t train(int rank, int size) {
  const ProcessGroup group = join_world(rank, size);
  nn::SyncBatchNorm layer({.channels = channels, .dtype = float64, .group = group});
  const Tensor x =
      (arange(samples * channels * 4, {float64}).reshape({samples, channels, 2, 2}) * 0.5 +
       static_cast<double>(rank % 7))
          .detach()
          .requires_grad_();
  const Tensor y = layer.forward(x);
  y.backward(ones(y.shape(), {float64}));
  mark();
  sum_over_world(group, 40'000);
  mark();
  return hash_of(layer.running_var, hash_of(layer.running_mean, 0));
}

}  // namespace

Job simulate_training(const Layout& layout, std::uint64_t seed) {
  const int size = layout.ranks();
  return simulate(layout, seed, 120 * second, [&](int rank) { return train(rank, size); });
}

void expect_success(const Job& job) {
  std::string lines;
  for (const Outcome& rank : job.ranks) lines += rank.lines;
  ASSERT_FALSE(job.was_ended) << lines;
  for (std::size_t r = 0; r < job.ranks.size(); ++r) {
    ASSERT_TRUE(job.ranks[r].has_exited) << r << job.ranks[r].error << job.waits;
    ASSERT_EQ(job.ranks[r].state, Outcome::State::succeeded) << job.ranks[r].error;
    ASSERT_EQ(job.ranks[r].result, job.ranks[0].result) << r;
    ASSERT_STREQ(job.ranks[r].lines, "") << r;
  }
}

}  // namespace tutti::simulator
