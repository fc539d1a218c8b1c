// Pooling as differentiable functions, over one to three spatial dimensions of (N, C, ...). Results
// and gradients have the input's memory format. An empty batch is legal. ShapeError for an input
// that does not fit; ValueError for options out of range.
#pragma once

#include "../../kernels/options.h"

namespace tutti::nn {

using kernels::PoolOptions;

/// Returns the options with one number for each of `rank` spatial dimensions. A single number
/// counts for all dimensions; an empty stride is the kernel, an empty padding is 0. ValueError that
/// names `op` for a kernel or stride below 1, or a padding that is negative or over half of the
/// kernel.
PoolOptions pool_options(const char* op, const PoolOptions& given, int rank);

/// Returns the largest element of every window, or NaN if the window contains one. The first of
/// equal elements, or the first NaN, gets the gradient. The options are those of pool_options().
/// The output has the sizes floor((in + 2 padding - kernel) / stride) + 1. With ceil_mode the
/// division is rounded up, but windows that would begin in the padding on the right are left out.
Tensor max_pool(const Tensor& x, const PoolOptions& options);
/// Returns the mean of every window. Padding counts as zeros if `count_include_pad` is set, else
/// not at all; what lies beyond it (ceil_mode) never counts.
Tensor avg_pool(const Tensor& x, const PoolOptions& options);
/// Returns the means of windows that cover the input evenly, `output` of them along each spatial
/// dimension: window o reaches from floor(o in / out) to ceil((o + 1) in / out). {1} is global
/// average pooling.
Tensor adaptive_avg_pool(const Tensor& x, const Dims& output);

}  // namespace tutti::nn
