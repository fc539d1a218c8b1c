// The losses share these functions: the check of a target's dtype and device, and the reduction.
// This header is private to nn/functional.
#pragma once

#include "loss.h"

namespace tutti::nn {

/// Throws a DeviceError or DTypeError that names `op` unless `target` has the device and the dtype
/// of `input`, or is float32 beside an input of 16 bits.
void expect_target_kind(const char* op, const Tensor& input, const Tensor& target);

/// Returns the losses, their sum or their mean.
Tensor reduce_losses(const Tensor& losses, LossReduction reduction);

}  // namespace tutti::nn
