#include "step_times.h"

#include <tutti/core/create.h>

#include <algorithm>
#include <numeric>

namespace tutti::examples {

double StepTimes::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

StepTimer::Scope::Scope(StepTimer& timer, StepPart part)
    : timer_(timer),
      part_(part),
      start_(std::chrono::steady_clock::now()),
      counted_before_(timer.times_.total()),
      waited_before_(timer.waited_()),
      waiting_before_(timer.times_[StepPart::waiting]) {}

StepTimer::Scope::~Scope() {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
  // Scopes inside of this one have counted their time and their waiting already.
  const double counted = timer_.times_.total() - counted_before_;
  const double own = std::max(passed.count() - counted, 0.0);
  const double waiting_counted = timer_.times_[StepPart::waiting] - waiting_before_;
  const double waited = std::clamp(timer_.waited_() - waited_before_ - waiting_counted, 0.0, own);
  timer_.times_[StepPart::waiting] += waited;
  timer_.times_[part_] += own - waited;
}

std::vector<StepTimes> StepTimer::take(const ProcessGroup& group) {
  constexpr std::int64_t columns = step_part_count + 1;
  std::vector<double> mine(times_.seconds.begin(), times_.seconds.end());
  mine.push_back(static_cast<double>(times_.steps));
  std::vector<double> all(static_cast<std::size_t>(group.size() * columns));
  group
      .all_gather(from_blob(mine.data(), {columns}, float64),
                  from_blob(all.data(), {group.size(), columns}, float64), {.name = "step times"})
      .wait();
  times_ = {};
  std::vector<StepTimes> ranks(static_cast<std::size_t>(group.size()));
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const double* const row = all.data() + r * columns;
    std::copy_n(row, step_part_count, ranks[r].seconds.begin());
    ranks[r].steps = static_cast<std::int64_t>(row[step_part_count]);
  }
  return ranks;
}

}  // namespace tutti::examples
