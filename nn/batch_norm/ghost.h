// Ghost batches: batch normalisation over parts of a rank's batch (Hoffer, Hubara and Soudry,
// "Train longer, generalize better", 2017). A large batch then has the noise of statistics that a
// small one has, which generalises better.
#pragma once

#include "arguments.h"

namespace tutti::nn {

/// Computes batch_norm(part, args) for the parts of `size` samples of x, in order, and returns the
/// results as one tensor like x. The last part may be smaller. The running statistics move once for
/// each part, as if the parts had come one after the other. Must not be called with a group. Beside
/// the errors of batch_norm, throws ShapeError if the last part would have one value per channel,
/// or the position weights of a part add up to 1 or less. Nothing has changed then, unless the
/// weights are on a device, which stops at the part that it refuses.
Tensor ghost_batch_norm(const Tensor& x, const BatchNormArgs& args,
                        const std::shared_ptr<CallHistory>& history, std::int64_t size);

}  // namespace tutti::nn
