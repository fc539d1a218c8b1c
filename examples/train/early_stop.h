// Early stopping (--patience): whether a run has gone on for long enough without a better test
// accuracy. The answers follow from the rows of metrics alone, so that a resumed run knows them.
#pragma once

#include "run_folder.h"

namespace tutti::examples {

/// Returns the row with the best test accuracy, of several the first. A test whose loss is not
/// finite is never the best. Null if there is no other.
const Metrics* best_row(const std::vector<Metrics>& rows);

/// Returns whether the rows end with the test results of this step.
bool is_tested(const std::vector<Metrics>& rows, std::int64_t step);

/// Returns whether the last row has test results and `patience` epochs, with it, have brought no
/// better accuracy than one before. Never with a patience of 0.
bool is_out_of_patience(const std::vector<Metrics>& rows, std::int64_t patience);

}  // namespace tutti::examples
