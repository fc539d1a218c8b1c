// Convolution as a differentiable function. The layers around it are nn/conv.h's business.
#pragma once

#include "../../kernels/convolution.h"

namespace tutti::nn {

using kernels::ConvOptions;

/// Cross-correlation of x (N, I, ...) over one to three spatial dimensions with weight (O,
/// I/groups, ...), plus bias (O) where defined: (N, O, ...) with sizes floor((in + 2 padding -
/// dilation (kernel - 1) - 1) / stride) + 1. An empty batch is legal. The result is channels_last
/// where x or weight is, else contiguous; so is the input's gradient. Autocast casts x and computes
/// in its dtype; weight, bias and their gradients keep theirs. ShapeError, DTypeError, DeviceError
/// for operands that do not fit; ValueError for options out of range.
Tensor convolution(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                   const ConvOptions& options = {});

/// The same for x of rank 3, 4 and 5 only.
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const ConvOptions& options = {});
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const ConvOptions& options = {});
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const ConvOptions& options = {});

}  // namespace tutti::nn
