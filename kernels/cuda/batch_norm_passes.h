// The CUDA batch norm passes by file: what batch_norm.cu puts into the table.
#pragma once

#include "../batch_norm.h"

namespace tutti::kernels::cuda {

void batch_norm_apply(const Tensor& x, const Normalization& to, const Tensor& y);
/// Also the parameters' gradients, where they are defined.
void batch_norm_reduce_grad(const Tensor& dy, const NormalizationGrad& of, const Tensor& sums,
                            const Tensor& masked, const Tensor& weight_grad,
                            const Tensor& bias_grad, const Message& message);
void batch_norm_apply_grad(const Tensor& dy, const NormalizationGrad& of, const Tensor& sums,
                           const Tensor& moments, const Tensor& weights, Epsilon eps,
                           const Tensor& dx);

}  // namespace tutti::kernels::cuda
