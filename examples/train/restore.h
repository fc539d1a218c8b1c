// restore(): continues a run from what a checkpoint holds of its network and its optimizer.
#pragma once

#include "checkpoint.h"
#include "optimization.h"
#include "progress.h"

#include <tutti/nn/module.h>
#include <tutti/optim/exponential_moving_average.h>

namespace tutti::examples {

/// Throws a CheckpointError, which names the file and the entry, unless a run of this length can go
/// on from the checkpoint: it has as many steps in an epoch, a row of metrics for the end of every
/// epoch, and has not made more steps than the run is to make. Also where it stopped early and
/// `options` have no patience, with which it would train on by accident.
void check_length(const TrainOptions& options, const Checkpoint& from, const RunLength& length);

/// Loads the weights, the optimizer and the loss scale of a checkpoint, and the averaged weights
/// into `ema`, which is null in a run without them. Throws a CheckpointError,
/// which names the file and the entry, and changes nothing, unless the checkpoint holds exactly
/// what such a run saves: every tensor with its shape and dtype, and the options that the run has.
void restore(const TrainOptions& options, const Checkpoint& from, nn::Module& net,
             Optimization& optimization, optim::ExponentialMovingAverage* ema);

}  // namespace tutti::examples
