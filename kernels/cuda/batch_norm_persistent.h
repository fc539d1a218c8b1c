// Forward and backward of one rank in one launch that reads its input once. docs/kernels.md says
// when.
#pragma once

#include "batch_norm_statistics.h"

namespace tutti::kernels::cuda {

/// moments, what `statistics` asks for, and apply; false where x does not fit, and nothing was done
/// then.
bool persistent_forward(const Tensor& x, const Statistics& statistics, const Normalization& to,
                        const Tensor& y);
/// reduce_grad, parameter_grad and apply_grad, likewise.
bool persistent_backward(const LocalBackward& arguments);

}  // namespace tutti::kernels::cuda
