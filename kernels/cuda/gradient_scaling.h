// The functions of the optimizer table that measure and scale gradients. gradient_scaling.cu
// defines them and optimizer.cu joins them in the table; kernels/optimizer.h documents them.
#pragma once

#include "../optimizer.h"

namespace tutti::kernels::cuda {

void sums_of_squares(std::span<const Tensor> tensors, const Tensor& out);
void clip(std::span<const Tensor> tensors, const Tensor& squares, double max_norm,
          const Tensor& norm);
void clip_values(std::span<const Tensor> tensors, double max_value);
void unscale(std::span<const Tensor> tensors, const Tensor& scale, const Tensor& found_inf);
void scale_into(std::span<const Tensor> from, std::span<const Tensor> to, double factor);

}  // namespace tutti::kernels::cuda
