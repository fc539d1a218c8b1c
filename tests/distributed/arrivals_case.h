// A rank that is late to a bucket in every step, on any process group: the report names it.
#pragma once

#include "data_parallel_case.h"

#include <tutti/distributed/diagnostics/straggler_monitor.h>

#include <numeric>
#include <thread>

namespace tutti::testing {

/// Rank 1 begins its backward only when the others have launched their buckets, and some time
/// after: so long that nothing else that holds up a rank on this machine now comes near.
inline void check_arrivals(const ProcessGroup& group) {
  using distributed::Arrivals;
  using Clock = std::chrono::steady_clock;
  constexpr int steps = 3;
  const StateDict model = small_model(group, true);
  const ProcessGroup aside = group.split(0);  // for what is not to be observed
  std::size_t launched = 0, buckets = 0;
  auto options = small_buckets;
  options.reorder_buckets = false;
  options.communication = [&](const ProcessGroup& ranks, const Tensor& bucket,
                              distributed::CallOptions call) {
    distributed::Work work = ranks.all_reduce(bucket, distributed::ReduceOp::sum, std::move(call));
    if (++launched == buckets && ranks.rank() != 1) aside.barrier();
    return work;
  };
  distributed::DataParallel ddp(model, {}, group, options);
  buckets = ddp.buckets().size();
  Arrivals arrivals(group);
  if (group.size() > 1) {
    EXPECT_THROW(Arrivals second(group), Error);
  }
  double late = 0.05;  // seconds
  Arrivals::Report report;
  for (;; late *= 2) {
    double longest = 0;  // time in which a step did something else than wait for rank 1
    for (int step = 0; step < steps; ++step) {
      clear_gradients(model);
      launched = 0;
      const Tensor loss = loss_of(model, group.rank(), step);
      if (group.size() > 1) aside.barrier();
      const auto begin = Clock::now();
      if (group.size() > 1 && group.rank() == 1) {
        aside.barrier();
        std::this_thread::sleep_for(std::chrono::duration<double>(late));
      }
      loss.backward();
      longest =
          std::max(longest, std::chrono::duration<double>(Clock::now() - begin).count() - late);
    }
    report = arrivals.report();
    const Tensor disturbance = full({}, longest, {.dtype = float64});
    aside.all_reduce(disturbance, distributed::ReduceOp::max).wait();
    if (group.size() == 1 || late > 3 ||
        (disturbance.item<double>() < late / 4 && report.waited[0] > late / 2))
      break;
  }
  ASSERT_EQ(report.waited.size(), static_cast<std::size_t>(group.size()));
  if (group.size() == 1) {
    EXPECT_EQ(report.collectives, 0);
    return;
  }
  const auto collectives = static_cast<std::int64_t>(steps * buckets);
  EXPECT_EQ(report.collectives, collectives);
  EXPECT_EQ(report.straggler(), 1);
  EXPECT_EQ(report.came_last[1], collectives);
  EXPECT_EQ(std::reduce(report.came_last.begin(), report.came_last.end()), collectives);
  // Half, since processes learn at different moments that a collective is done.
  EXPECT_GE(report.held_up[1], steps * late / 2);
  EXPECT_GE(report.waited[0], late / 2);
  ASSERT_EQ(report.skews.size(), buckets);
  EXPECT_TRUE(report.skews[0].name.starts_with("bucket 0: "));
  EXPECT_EQ(report.skews[0].calls, steps);
  EXPECT_GE(report.skews[0].mean, late / 2);
  EXPECT_GE(report.skews[0].largest, report.skews[0].mean);
  EXPECT_EQ(arrivals.report().collectives, 0);  // nothing since
}

}  // namespace tutti::testing
