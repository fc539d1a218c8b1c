// The text of --dry-run: what a run would take. A few small steps measure memory; no file is
// written.
#pragma once

#include "../train/options.h"
#include "../train/training_data.h"

#include <string>

namespace tutti::examples {

/// Returns a text of several lines: the model, the data, the length of the run and the memory of a
/// rank. `ranks` counts threads or processes.
///
/// Memory is measured on the CPU, with the statistics of its allocator, in steps of 2 and of 4
/// images, and extrapolated to a rank's part of the batch. What libraries such as oneDNN allocate
/// by themselves and images that are loaded ahead do not count.
std::string describe_run(const TrainOptions& options, const TrainingData& data, int ranks);

}  // namespace tutti::examples
