// The CPU's batch norm kernels by file: what batch_norm.cpp puts into the table.
#pragma once

#include "../batch_norm.h"

namespace tutti::kernels::cpu {

void batch_norm_moments(const Tensor& x, const Tensor& weights, const Tensor& packet);
void batch_norm_apply(const Tensor& x, const Normalization& to, const Tensor& y);
void batch_norm_reduce_grad(const Tensor& dy, const NormalizationGrad& of, const Tensor& sums,
                            const Tensor& masked);
void batch_norm_apply_grad(const Tensor& dy, const NormalizationGrad& of, const Tensor& sums,
                           const Tensor& moments, const Tensor& weights, Epsilon eps,
                           const Tensor& dx);

}  // namespace tutti::kernels::cpu
