// The product of the fully connected layer, with its bias, as a differentiable function.
#pragma once

#include "../../core/tensor.h"

namespace tutti::nn {

/// Returns x (..., in) times the transpose of weight (out, in), plus bias (out) if it is defined: a
/// tensor (..., out). Autocast casts x and computes in its dtype; weight, bias and their gradients
/// keep theirs. ShapeError, DTypeError or DeviceError for tensors that do not fit together.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace tutti::nn
