// The text of --dry-run: what a run would take. A few small steps measure memory and communication;
// no file is written.
#pragma once

#include "../train/options.h"
#include "../train/training_data.h"

#include <string>

namespace tutti::examples {

/// Returns a text of several lines: the model by types of layers, the length of the run, the memory
/// of a rank, and what a rank sends in a step. `ranks` counts threads or processes.
///
/// Memory is measured on the CPU, with the statistics of its allocator, in steps of 2 and of 4
/// images, and extrapolated to a rank's part of the batch. What libraries such as oneDNN allocate
/// by themselves and images that are loaded ahead do not count. Communication is what one of two
/// ranks that are threads issues in a step; collectives and bytes do not depend on their number.
std::string describe_run(const TrainOptions& options, const TrainingData& data, int ranks);

}  // namespace tutti::examples
