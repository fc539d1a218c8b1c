// hosts_cost CHANNELS ROUNDS: rank 0 prints how many microseconds the forward and the backward of
// a SyncBatchNorm take, on the mean of so many rounds.
#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

using namespace tutti;

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  const std::int64_t channels = std::atoi(argv[1]), rounds = std::atoi(argv[2]);
  const auto group = ProcessGroup::from_environment(std::chrono::seconds(30));
  nn::SyncBatchNorm layer({.channels = channels, .group = group});
  const auto round = [&] { sum(layer(randn({2, channels}).requires_grad_())).backward(); };
  for (int i = 0; i < 5; ++i) round();
  group.barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < rounds; ++i) round();
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  if (group.rank() == 0) std::printf("%.0f\n", time.count() / static_cast<double>(rounds));
}
