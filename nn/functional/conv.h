// Convolution as a differentiable function. The layers that use it are in nn/conv.h.
#pragma once

#include "../../kernels/options.h"

namespace tutti::nn {

using kernels::ConvOptions;

/// Returns the cross-correlation of x (N, I, ...) over one to three spatial dimensions with weight
/// (O, I/groups, ...), plus bias (O) if it is defined. The result has shape (N, O, ...) with sizes
/// floor((in + 2 padding - dilation (kernel - 1) - 1) / stride) + 1. An empty batch is legal. The
/// result and the gradient of x are channels_last if x or weight is, else contiguous. Autocast
/// casts x and computes in its dtype; weight, bias and their gradients keep theirs. ShapeError,
/// DTypeError or DeviceError for tensors that do not fit together; ValueError for options out of
/// range.
Tensor convolution(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                   const ConvOptions& options = {});

/// Sets whether convolutions on the CPU are direct sums always, in all threads from their next call
/// on. By default 3x3 convolutions use Winograd's algorithm where that is faster, whose errors are
/// some times larger (docs/design/tensors.md has numbers).
void set_exact_convolutions(bool exact = true);

}  // namespace tutti::nn
