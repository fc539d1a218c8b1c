#include "metrics.h"

#include "options.h"

#include <tutti/core/create.h>
#include <tutti/core/error.h>

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

Metrics epoch_means(const std::vector<Metrics>& rows) {
  Metrics means = rows.back();
  means.train_loss = means.train_accuracy = 0;
  double steps = 0, waiting = 0, timed_steps = 0, time = 0, speed = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Metrics& row = rows[i];
    if (row.epoch != means.epoch) continue;
    const auto weight = static_cast<double>(row.step - (i > 0 ? rows[i - 1].step : 0));
    steps += weight;
    // Means that move cannot overflow, as sums of large losses can.
    means.train_loss += weight / steps * (row.train_loss - means.train_loss);
    means.train_accuracy += weight / steps * (row.train_accuracy - means.train_accuracy);
    if (!(row.images_per_second > 0)) continue;     // the row's steps were another process's
    if (speed == 0) speed = row.images_per_second;  // a step's time at this speed is the unit
    const double row_time = weight * (speed / row.images_per_second);
    timed_steps += weight;
    time += row_time;
    waiting += row_time * row.data_waiting;
  }
  means.images_per_second = timed_steps > 0 ? timed_steps / time * speed : 0;
  means.data_waiting = timed_steps > 0 ? waiting / time : 0;
  return means;
}

bool is_tested(const std::vector<Metrics>& rows, std::int64_t step) {
  return !rows.empty() && rows.back().step == step && rows.back().test_accuracy;
}

// ---- metrics table

namespace {

Metrics row_from(const double* values) {
  const auto known = [](double value) {
    return std::isnan(value) ? std::optional<double>() : value;
  };
  return {.epoch = static_cast<std::int64_t>(values[0]),
          .step = static_cast<std::int64_t>(values[1]),
          .train_loss = values[2],
          .train_accuracy = values[3],
          .images_per_second = values[4],
          .learning_rate = values[5],
          .data_waiting = values[8],
          .test_loss = known(values[6]),
          .test_accuracy = known(values[7])};
}

}  // namespace

Tensor to_table(const std::vector<Metrics>& rows) {
  const Tensor table =
      empty({static_cast<std::int64_t>(rows.size()), metrics_columns}, {.dtype = float64});
  double* at = table.data<double>();
  for (const Metrics& m : rows)
    for (const double value :
         {static_cast<double>(m.epoch), static_cast<double>(m.step), m.train_loss, m.train_accuracy,
          m.images_per_second, m.learning_rate, m.test_loss.value_or(NAN),
          m.test_accuracy.value_or(NAN), m.data_waiting})
      *at++ = value;
  return table;
}

std::vector<Metrics> rows_from_table(const Tensor& table, std::int64_t step) {
  std::vector<Metrics> rows;
  for (std::int64_t r = 0; r < table.size(0); ++r) {
    const double* const values = table.data<double>() + r * metrics_columns;
    const auto last = static_cast<double>(step), epoch = values[0], at = values[1];
    const Metrics before = rows.empty() ? Metrics{.epoch = 1} : rows.back();
    const bool follows = epoch >= static_cast<double>(before.epoch) && epoch <= last &&
                         at > static_cast<double>(before.step) && at <= last;  // and is no NaN
    if (!follows)
      fail<CheckpointError>(
          "tensor 'rows': row {} is of step {} in epoch {}, after step {} in epoch {}, in a "
          "checkpoint of step {}",
          r, at, epoch, before.step, before.epoch, step);
    rows.push_back(row_from(values));
  }
  return rows;
}

}  // namespace tutti::examples
