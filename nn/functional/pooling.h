// Pooling as differentiable functions, over one to three spatial dimensions of (N, C, ...). Results
// and gradients are in the input's memory format. An empty batch is legal. ShapeError where the
// input does not fit; ValueError for options out of range.
#pragma once

#include "../../kernels/pooling.h"

namespace tutti::nn {

using kernels::PoolOptions;

/// The options with one number for each of `rank` spatial dimensions, as the functions below
/// understand them. ValueError that names `op` for a kernel or stride below 1, or a padding that is
/// negative or over half of the kernel.
PoolOptions pool_options(const char* op, const PoolOptions& given, int rank);

/// The largest element of every window (the first of equals gets the gradient; a NaN may be passed
/// over). Options: a single number counts for all spatial dimensions; an empty stride is the
/// kernel, an empty padding none; padding is at most half of the kernel. Output sizes: floor((in +
/// 2 padding - kernel) / stride) + 1.
Tensor max_pool(const Tensor& x, const PoolOptions& options);
/// The mean of every window; padding counts as zeros where `count_include_pad`, else not at all.
Tensor avg_pool(const Tensor& x, const PoolOptions& options);
/// The mean of `output` windows for each spatial dimension that cover the input evenly: window o
/// reaches from floor(o in / out) to ceil((o + 1) in / out). {1} is global average pooling.
Tensor adaptive_avg_pool(const Tensor& x, const Dims& output);

}  // namespace tutti::nn
