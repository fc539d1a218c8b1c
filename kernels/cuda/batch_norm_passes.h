// The streaming passes of batch norm on CUDA that have a file each. batch_norm.cu puts them into
// the table.
#pragma once

#include "../batch_norm.h"

namespace tutti::kernels::cuda {

void batch_norm_apply(const Tensor& x, const Normalization& normalization, const Tensor& y);
void batch_norm_finalize_and_apply(const ForwardFromSums& arguments);
void batch_norm_gradient_sums(const GradientSums& arguments);
void batch_norm_apply_grad(const InputGradient& arguments);

}  // namespace tutti::kernels::cuda
