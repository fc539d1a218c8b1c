// The product of the fully connected layer, with bias and activation, as a differentiable function.
#pragma once

#include "../../kernels/options.h"

namespace tutti::nn {

using kernels::Activation;

/// Returns x (..., in) times the transpose of weight (out, in), plus bias (out) if it is defined,
/// after the activation: a tensor (..., out). linear(x, weight, bias, Activation::relu) is
/// relu(linear(x, weight, bias)) without a tensor in between, and on CUDA in one kernel. Autocast
/// casts x and computes in its dtype; weight, bias and their gradients keep theirs. ShapeError,
/// DTypeError or DeviceError for tensors that do not fit together.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              Activation activation = Activation::none);

}  // namespace tutti::nn
