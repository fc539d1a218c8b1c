// The fully connected map as a differentiable function, with the activation that follows it.
#pragma once

#include "../../kernels/matmul.h"

namespace tutti::nn {

using kernels::Activation;

/// x (..., in) times the transpose of weight (out, in), plus bias (out) where defined, then the
/// activation: (..., out). linear(x, weight, bias, Activation::relu) is relu(linear(x, weight,
/// bias)) without a tensor in between, and on CUDA without a pass over one. Autocast casts x and
/// computes in its dtype; weight, bias and their gradients keep theirs. ShapeError, DTypeError,
/// DeviceError for operands that do not fit.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              Activation activation = Activation::none);

}  // namespace tutti::nn
