// expect_same_data(): processes on several hosts read copies of the data, which may differ. Ranks
// that are threads share one copy and need no check.
#pragma once

#include "dataset.h"

namespace tutti::examples {

/// Throws a DataError, with the same text on every rank, unless all ranks have as many training and
/// test images, the same classes and, in folders, the same names of files in each class. The
/// content of files is not read. Every rank calls it with the whole data. This call is collective.
void expect_same_data(const TrainingData& data, const ProcessGroup& group);

}  // namespace tutti::examples
