// Transposed convolution as a differentiable function. It computes the gradient of a convolution's
// input, so it has no kernels of its own. The layers that use it are in nn/conv_transpose.h.
#pragma once

#include "../../core/tensor.h"

namespace tutti::nn {

/// The options of a transposed convolution: one number for all spatial dimensions, or one for each.
struct ConvTransposeOptions {
  Dims stride = {1};
  /// The number of elements that are left out on either side of each spatial dimension.
  Dims padding = {0};
  /// The number of elements that each spatial dimension has more on its right; below the stride.
  Dims output_padding = {0};
  Dims dilation = {1};
  std::int64_t groups = 1;
};

/// Returns the transposed convolution of x (N, I, ...) over one to three spatial dimensions with
/// weight (I, O/groups, ...), plus bias (O) if it is defined: the gradient of the input of the
/// convolution with the same weight and options. The result has shape (N, O, ...) with sizes
/// (in - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1. Layouts, dtypes and
/// Autocast are those of convolution(). ShapeError, DTypeError or DeviceError for tensors that do
/// not fit together; ValueError for options out of range.
Tensor conv_transpose(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                      const ConvTransposeOptions& options = {});

}  // namespace tutti::nn
