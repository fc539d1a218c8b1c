#include "metrics.h"

#include "options.h"

#include <tutti/core/create.h>
#include <tutti/core/error.h>

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

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

bool is_out_of_patience(const std::vector<Metrics>& rows, std::int64_t patience) {
  if (patience == 0 || rows.empty() || !rows.back().test_accuracy) return false;
  const Metrics* const best = best_row(rows);
  const std::int64_t best_step = best ? best->step : 0;
  return std::ranges::count_if(rows, [&](const Metrics& row) {
           return row.step > best_step && row.test_accuracy;
         }) >= patience;
}

// ---- straggler summary

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

// ---- metrics table

namespace {

constexpr double largest = std::numeric_limits<double>::max(),
                 infinity = std::numeric_limits<double>::infinity();

// The values that a column may have.
struct Column {
  const char* name;
  double low, high;
  bool is_whole = false, may_be_nan = false;
};
constexpr std::array<Column, metrics_columns> column_checks{
    {{.name = "epoch", .low = 1, .high = 0x1p53, .is_whole = true},
     {.name = "step", .low = 1, .high = 0x1p53, .is_whole = true},
     {.name = "train_loss", .low = -largest, .high = largest},
     {.name = "train_accuracy", .low = 0, .high = 1},
     {.name = "images_per_second", .low = 0, .high = infinity},
     {.name = "learning_rate", .low = 0, .high = largest},
     {.name = "test_loss", .low = -infinity, .high = infinity, .may_be_nan = true},
     {.name = "test_accuracy", .low = 0, .high = 1, .may_be_nan = true},
     {.name = "data_waiting", .low = 0, .high = 1}}};

void check_value(std::int64_t row, const Column& column, double value) {
  const bool is_legal = std::isnan(value) ? column.may_be_nan
                                          : value >= column.low && value <= column.high &&
                                                (!column.is_whole || value == std::floor(value));
  if (!is_legal)
    fail<CheckpointError>("tensor 'rows': row {}: {} is {}, expected a {}number of {} to {}", row,
                          column.name, value, column.is_whole ? "whole " : "", column.low,
                          column.high);
}

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
    for (std::size_t c = 0; c < column_checks.size(); ++c)
      check_value(r, column_checks[c], values[c]);
    const Metrics row = row_from(values);
    const Metrics before = rows.empty() ? Metrics{.epoch = 1} : rows.back();
    if (row.step <= before.step || row.step > step || row.epoch < before.epoch)
      fail<CheckpointError>(
          "tensor 'rows': row {} is of step {} in epoch {}, after step {} in epoch {}, in a "
          "checkpoint of step {}",
          r, row.step, row.epoch, before.step, before.epoch, step);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace tutti::examples
