#include "early_stop.h"

#include <algorithm>
#include <cmath>

namespace tutti::examples {

const Metrics* best_row(const std::vector<Metrics>& rows) {
  const Metrics* best = nullptr;
  for (const Metrics& row : rows)
    if (row.test_accuracy && std::isfinite(row.test_loss.value_or(0)) &&
        (!best || *row.test_accuracy > *best->test_accuracy))
      best = &row;
  return best;
}

bool is_tested(const std::vector<Metrics>& rows, std::int64_t step) {
  return !rows.empty() && rows.back().step == step && rows.back().test_accuracy;
}

bool is_out_of_patience(const std::vector<Metrics>& rows, std::int64_t patience) {
  if (patience == 0 || rows.empty() || !rows.back().test_accuracy) return false;
  const Metrics* const best = best_row(rows);
  const std::int64_t best_step = best ? best->step : 0;
  return std::ranges::count_if(rows, [&](const Metrics& row) {
           return row.step > best_step && row.test_accuracy;
         }) >= patience;
}

}  // namespace tutti::examples
