// Metrics, a row of metrics.jsonl, and what follows from the rows alone: the best epoch, the
// means of an epoch, and the table in a checkpoint. Where the figures come from is
// evaluation.h's and training_step.h's business.
#pragma once

#include <tutti/core/tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace tutti::examples {

/// How long a run is. `steps` may be less than epochs * steps_per_epoch.
struct RunLength {
  std::int64_t epochs = 0, steps_per_epoch = 0, steps = 0;
};

/// A row of metrics.jsonl: the training figures since the row before, and test figures at the end
/// of an epoch.
struct Metrics {
  std::int64_t epoch = 0;  ///< Counted from 1.
  std::int64_t step = 0;   ///< Counted from 1, over all epochs.
  double train_loss = 0;
  double train_accuracy = 0;
  double images_per_second = 0;  ///< Training images of all ranks; evaluation does not count.
  double learning_rate = 0;
  double data_waiting = 0;  ///< the part of the time in which rank 0 waited for training images
  std::optional<double> test_loss = {};
  std::optional<double> test_accuracy = {};
};

/// Returns the row with the best test accuracy, of several the first. A test whose loss is not
/// finite is never the best. Null if there is no other.
const Metrics* best_row(const std::vector<Metrics>& rows);

/// Returns the last row, which is one of the last epoch, with the means over that epoch's steps so
/// far in place of its own training figures.
Metrics epoch_means(const std::vector<Metrics>& rows);

/// Returns whether the rows end with the test results of this step.
bool is_tested(const std::vector<Metrics>& rows, std::int64_t step);

/// The number of columns of the table.
constexpr std::int64_t metrics_columns = 9;

/// Returns the rows as float64 (rows, metrics_columns). A test figure that a row does not have is
/// NaN.
Tensor to_table(const std::vector<Metrics>& rows);

/// Returns the rows of such a table, of a run that has made `step` steps. Throws a CheckpointError
/// that names the row where steps or epochs do not rise up to it.
std::vector<Metrics> rows_from_table(const Tensor& table, std::int64_t step);

}  // namespace tutti::examples
