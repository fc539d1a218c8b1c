// Files that a run keeps beside its last checkpoint: the best weights (--keep-best) and the
// checkpoints of the last epochs (--keep-last). They are written by rank 0, each as a whole. What
// a checkpoint holds is checkpoint.h's business.
#pragma once

#include "checkpoint.h"

namespace tutti::examples {

/// Returns OUT/best.safetensors.
std::string best_path(const TrainOptions& options);

/// Writes best.safetensors if the last of `rows` has a better test accuracy than the weights in the
/// file had, by its metadata. A test whose loss is not finite is never the best.
void keep_best(const TrainOptions& options, const std::vector<Metrics>& rows,
               const StateDict& state, const Metadata& metadata);

/// Returns the line for the screen that says what best.safetensors holds.
std::string describe_best(const TrainOptions& options);

/// Writes the checkpoint of the end of an epoch as OUT/checkpoint-epoch-NNNN.safetensors, and then
/// removes those of epochs that are no longer among the last options.keep_last.
void keep_checkpoint(const TrainOptions& options, const Checkpoint& checkpoint, std::int64_t epoch);

}  // namespace tutti::examples
