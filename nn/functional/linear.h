// The fully connected map as a differentiable function.
#pragma once

#include "../../core/tensor.h"

namespace tutti::nn {

/// x (..., in) times the transpose of weight (out, in), plus bias (out) where defined: (..., out). Autocast casts x and
/// computes in its dtype; weight, bias and their gradients keep theirs. ShapeError, DTypeError, DeviceError for
/// operands that do not fit.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace tutti::nn
