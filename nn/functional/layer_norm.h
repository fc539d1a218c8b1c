// Layer normalisation as a function.
#pragma once

#include "../../core/tensor.h"

namespace tutti::nn {

/// y = (x - mean) / sqrt(var + eps) weight + bias, mean and biased variance over the last
/// dimensions of x, which must be `normalized_shape` (Ba, Kiros, Hinton, "Layer Normalization",
/// 2016). weight and bias have that shape, float32 or float64; undefined: 1 and 0. The result is
/// row-major. ShapeError, DTypeError, DeviceError; ValueError for an eps that is negative or not
/// finite.
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

}  // namespace tutti::nn
