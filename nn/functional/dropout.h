// Dropout of elements and of whole samples as differentiable functions.
#pragma once

#include "../../core/random.h"
#include "../../core/tensor.h"

namespace tutti::nn {

/// Throws a ValueError that names `op` unless `p` is a probability.
void expect_probability(const char* op, double p);

/// In training, zeroes each element with probability `p` and scales the others by 1 / (1 - p).
/// Otherwise it returns `x`. It draws one 32-bit number for each element in row-major order, for
/// every memory layout and number of threads. ValueError unless 0 <= p <= 1.
Tensor dropout(const Tensor& x, double p, bool training,
               Generator& generator = default_generator());

/// Stochastic depth (Huang et al., ECCV 2016): in training, zeroes each sample x[n] with
/// probability `p` and scales the others by 1 / (1 - p). Otherwise it returns `x`. It draws one
/// 32-bit number for each sample. ShapeError for a tensor without dimensions; ValueError unless 0
/// <= p <= 1.
Tensor drop_path(const Tensor& x, double p, bool training,
                 Generator& generator = default_generator());

}  // namespace tutti::nn
