#include "straggler_summary.h"

#include <algorithm>

namespace tutti::examples {
namespace {

using Report = distributed::StragglerMonitor::Report;

template <class Number>
void add(std::vector<Number>& sums, const std::vector<Number>& values) {
  sums.resize(values.size());
  for (std::size_t r = 0; r < values.size(); ++r) sums[r] += values[r];
}

Report sum_of(const std::vector<Metrics>& rows) {
  Report sum;
  for (const Metrics& row : rows) {
    if (!row.stragglers) continue;
    sum.collectives += row.stragglers->collectives;
    add(sum.waited_seconds, row.stragglers->waited_seconds);
    add(sum.held_up_seconds, row.stragglers->held_up_seconds);
    add(sum.came_last, row.stragglers->came_last);
  }
  return sum;
}

}  // namespace

std::string straggler_summary(const std::vector<Metrics>& rows) {
  const Report sum = sum_of(rows);
  if (sum.waited_seconds.empty()) return {};
  const auto rank = static_cast<std::size_t>(sum.straggler());
  const auto [least, most] =
      std::minmax_element(sum.waited_seconds.begin(), sum.waited_seconds.end());
  return fmt::format(
      "the others waited longest for rank {}: {:.2f} s, and it came last to {} of {} collectives; "
      "ranks waited {:.2f} to {:.2f} s in all",
      rank, sum.held_up_seconds[rank], sum.came_last[rank], sum.collectives, *least, *most);
}

}  // namespace tutti::examples
