// SyncBatchNorm on processes: the cases that threads run too, and that both give the same bits.
#include "../distributed/sync_batch_norm_case.h"
#include "emulated_hosts.h"

namespace tutti {
namespace {

using distributed::world;

TEST(Mpi, SyncBatchNormEqualsOneProcessOnTheWholeBatch) {
  test::check_sync_batch_norm_against_one_process(world());
}
TEST(Mpi, SyncBatchNormEqualsOneProcessWithEveryOption) {
  test::check_sync_batch_norm_options_against_one_process(world());
}
TEST(Mpi, PoolStatisticsOfGroups) { test::check_pool_statistics(world()); }
TEST(Mpi, PoolStatisticsOfUnevenRanks) { test::check_pool_statistics_of_uneven_ranks(world()); }
TEST(Mpi, SyncBatchNormKeepsToItsGroup) { test::check_sync_batch_norm_scope(world()); }
TEST(Mpi, SyncBatchNormNeedsMoreThanOneElementInAll) {
  test::check_sync_batch_norm_counts(world());
}

TEST(Mpi, SyncBatchNormEqualsThatOfThreadsToTheBit) {
  namespace sync_batch_norm = test::sync_batch_norm;
  const ProcessGroup& processes = world();
  for (const DType dtype : {float64, float32, bfloat16})
    for (const bool fused : {false, true})
      for (const bool weighted : {false, true}) {
        if (fused && weighted) continue;
        const sync_batch_norm::Setup setup{
            .dtype = dtype,
            .format = fused ? MemoryFormat::channels_last : MemoryFormat::contiguous,
            .sizes = sync_batch_norm::split(12, processes.size(), 1),
            .residual = fused,
            .relu = fused,
            .weighted = weighted};
        const auto all_of = [&](const ProcessGroup& group) {
          std::int64_t from = 0;
          for (int r = 0; r < group.rank(); ++r) from += setup.sizes[static_cast<std::size_t>(r)];
          const sync_batch_norm::Result r = sync_batch_norm::train(
              setup, group, from, from + setup.sizes[static_cast<std::size_t>(group.rank())]);
          std::vector<std::vector<double>> values;
          for (const Tensor& t : {r.y, r.dx, r.d_weight, r.d_bias, r.running_mean, r.running_var})
            values.push_back(to_vector(t));
          if (fused) values.push_back(to_vector(r.d_residual));
          return values;
        };
        const auto here = all_of(processes);
        std::vector<std::vector<double>> there;
        distributed::run_ranks(
            processes.size(),
            [&](const ProcessGroup& threads) {
              const auto values = all_of(threads);
              if (threads.rank() == processes.rank()) there = values;
            },
            test::as_these_processes());
        EXPECT_EQ(here, there) << to_string(dtype) << (fused ? " fused" : "")
                               << (weighted ? " weighted" : "");
      }
}

}  // namespace
}  // namespace tutti
