// Layer normalisation as a differentiable function (Ba, Kiros and Hinton, "Layer Normalization",
// 2016).
#pragma once

#include "../../core/tensor.h"

namespace tutti::nn {

/// Returns (x - mean) / sqrt(var + eps) * weight + bias. Mean and biased variance are taken over
/// the last dimensions of x, which must be `normalized_shape`. Weight and bias have that shape, in
/// float32 or float64; undefined they stand for 1 and 0. The result is row-major. ShapeError,
/// DTypeError or DeviceError for tensors that do not fit together; ValueError for an eps that is
/// negative or not finite.
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

}  // namespace tutti::nn
