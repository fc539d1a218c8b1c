// The CPU's batch norm kernels by file: what batch_norm.cpp puts into the table.
#pragma once

#include "../batch_norm.h"

namespace tutti::kernels::cpu {

void batch_norm_moments(const Tensor& x, const Tensor& weights, const Tensor& packet);
void batch_norm_apply(const Tensor& x, const Normalization& to, const Tensor& y);
/// Writes the gradient sums but not their header, and masked_dy.
void batch_norm_reduce_grad(const Tensor& dy, const SavedForward& saved, const Tensor& sums,
                            const Tensor& masked_dy);
void batch_norm_apply_grad(const InputGradient& arguments);

}  // namespace tutti::kernels::cpu
