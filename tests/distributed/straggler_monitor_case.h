// A rank that comes late to every gradient bucket, on any process group: the report of
// StragglerMonitor names it.
#pragma once

#include "data_parallel_case.h"

#include <tutti/distributed/diagnostics/straggler_monitor.h>

#include <numeric>
#include <thread>

namespace tutti::test {

using Seconds = std::chrono::duration<double>;

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return Seconds(std::chrono::steady_clock::now() - begin).count();
}

/// Training steps in which rank 1 begins its backward only when the other ranks have launched all
/// of their buckets, and `late` seconds after that.
class StepsWithALateRank {
 public:
  explicit StepsWithALateRank(const ProcessGroup& group)
      : group_(group), aside_(group.split(0)), model_(small_model(group, true)) {
    auto options = small_buckets;
    options.reorder_buckets = false;
    options.communication = [this](const ProcessGroup& ranks, const Tensor& bucket,
                                   distributed::CallOptions call) {
      distributed::Work work =
          ranks.all_reduce(bucket, distributed::ReduceOp::sum, std::move(call));
      if (++launched_ == buckets() && ranks.rank() != 1) aside_.barrier();
      return work;
    };
    ddp_.emplace(model_, StateDict(), group, options);
  }

  std::size_t buckets() const { return ddp_->buckets().size(); }

  /// Runs `steps` steps. Returns the longest time, over steps and ranks, in which a step did
  /// something else than wait for rank 1.
  double run(int steps, double late) {
    double longest = 0;
    for (int step = 0; step < steps; ++step) {
      clear_gradients(model_);
      launched_ = 0;
      const Tensor loss = loss_of(model_, group_.rank(), step);
      if (group_.size() > 1) aside_.barrier();
      const auto begin = std::chrono::steady_clock::now();
      if (group_.size() > 1 && group_.rank() == 1) {
        aside_.barrier();
        std::this_thread::sleep_for(Seconds(late));
      }
      loss.backward();
      longest = std::max(longest, seconds_since(begin) - late);
    }
    const Tensor over_ranks = full({}, longest, {.dtype = float64});
    aside_.all_reduce(over_ranks, distributed::ReduceOp::max).wait();
    return over_ranks.item<double>();
  }

 private:
  const ProcessGroup& group_;
  ProcessGroup aside_;  // for calls that the monitor must not see
  StateDict model_;
  std::optional<distributed::DataParallel> ddp_;
  std::size_t launched_ = 0;
};

/// What is launched before a report and waited for after it belongs to neither period, and a second
/// wait adds nothing.
inline void check_periods_of_straggler_monitor(const ProcessGroup& group) {
  if (group.size() == 1) return;
  distributed::StragglerMonitor monitor(group);
  const Tensor a = ones({3}), b = ones({3});
  distributed::Work early = group.all_reduce(a);
  EXPECT_EQ(monitor.report().collectives, 0);
  early.wait();
  EXPECT_EQ(monitor.report().collectives, 0);
  distributed::Work work = group.all_reduce(b);
  work.wait();
  const double waited = monitor.waited_seconds();
  work.wait();
  EXPECT_EQ(monitor.waited_seconds(), waited);
  EXPECT_EQ(monitor.report().collectives, 1);
}

/// The delay doubles until nothing else that holds up a rank on this machine comes near to it.
inline void check_straggler_monitor(const ProcessGroup& group) {
  using distributed::StragglerMonitor;
  check_periods_of_straggler_monitor(group);
  constexpr int steps = 3;
  StepsWithALateRank training(group);
  training.run(1, 0);  // the first step has more collectives
  StragglerMonitor monitor(group);
  if (group.size() > 1) {
    EXPECT_THROW(StragglerMonitor second(group), Error);
  }
  StragglerMonitor::Report report;
  double late = 0.05;  // seconds
  for (;; late *= 2) {
    const double disturbance = training.run(steps, late);
    const double waited = (report = monitor.report()).waited_seconds.at(0);
    if (group.size() == 1 || late > 3 || (disturbance < late / 4 && waited > late / 2)) break;
  }
  ASSERT_EQ(report.waited_seconds.size(), static_cast<std::size_t>(group.size()));
  if (group.size() == 1) {
    EXPECT_EQ(report.collectives, 0);
    return;
  }
  const auto collectives = static_cast<std::int64_t>(steps * training.buckets());
  EXPECT_EQ(report.collectives, collectives);
  EXPECT_EQ(report.straggler(), 1);
  EXPECT_EQ(report.came_last[1], collectives);
  EXPECT_EQ(std::reduce(report.came_last.begin(), report.came_last.end()), collectives);
  // Half of the delay, because processes learn at different moments that a collective is done.
  EXPECT_GE(report.held_up_seconds[1], steps * late / 2);
  EXPECT_GE(report.waited_seconds[0], late / 2);
  ASSERT_EQ(report.skews.size(), training.buckets());
  EXPECT_TRUE(report.skews[0].name.starts_with("bucket 0: "));
  EXPECT_EQ(report.skews[0].calls, steps);
  EXPECT_GE(report.skews[0].mean_seconds, late / 2);
  EXPECT_GE(report.skews[0].largest_seconds, report.skews[0].mean_seconds);
  EXPECT_EQ(monitor.report().collectives, 0);  // nothing has happened since
}

}  // namespace tutti::test
