// The rows of metrics as the table that a checkpoint holds.
#pragma once

#include "run_folder.h"

namespace tutti::examples {

/// The number of columns of the table.
constexpr std::int64_t metrics_columns = 9;

/// Returns the rows as float64 (rows, metrics_columns). A test figure that a row does not have is
/// NaN.
Tensor to_table(const std::vector<Metrics>& rows);

/// Returns the rows of such a table, of a run that has made `step` steps. Throws a CheckpointError
/// that names the row and the column for a number that no run writes.
std::vector<Metrics> rows_from_table(const Tensor& table, std::int64_t step);

}  // namespace tutti::examples
