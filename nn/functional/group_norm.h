// Group normalisation as a differentiable function (Wu and He, "Group Normalization", 2018). It
// runs on the kernels of batch normalisation, with samples and channels as its channels.
#pragma once

#include "../../core/tensor.h"

namespace tutti::nn {

/// Returns (x - mean) / sqrt(var + eps) * weight + bias for x of shape (N, C, ...), in the memory
/// format of x. Mean and biased variance are those of each sample and each of `groups` groups of
/// neighbouring channels. Weight and bias have shape (C), in float32 or float64; undefined they
/// stand for 1 and 0. It takes two passes over x, and in the backward three; a channels_last x and
/// its gradient are copied to row-major memory and back. ValueError if `groups` does not divide C
/// or eps is negative or not finite; ShapeError, DTypeError or DeviceError for tensors that do not
/// fit together.
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

}  // namespace tutti::nn
