// This file declares the passes over activations of the CPU's batch norm, each of which has a
// source file of its own: moments, apply, the gradient sums and the gradient of the input. The
// per-channel steps between them and the table are in batch_norm.cpp.
#pragma once

#include "../batch_norm.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

void batch_norm_moments(const Tensor& x, const Tensor& position_weights, const Tensor& moments);
void batch_norm_apply(const Tensor& x, const Normalization& normalization, const Tensor& y);
/// Writes `sums` without a header, and `masked_dy`; leaves the other outputs to the caller.
void batch_norm_gradient_sums(const GradientSums& arguments);
void batch_norm_apply_grad(const InputGradient& arguments);

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
