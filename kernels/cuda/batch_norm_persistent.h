// Forward and backward of one rank by persistent kernels: one launch that reads its input once.
// docs/kernels.md says for which shapes they run.
#pragma once

#include "batch_norm_statistics.h"

namespace tutti::kernels::cuda {

/// Computes moments, what `statistics` asks for, and the output. Returns false, and does nothing,
/// if x does not fit.
bool persistent_forward(const Tensor& x, const Statistics& statistics, const Normalization& to,
                        const Tensor& y);
/// Computes gradient_sums and apply_grad. Returns false, and does nothing, if x does not fit.
bool persistent_backward(const LocalBackward& arguments);

}  // namespace tutti::kernels::cuda
