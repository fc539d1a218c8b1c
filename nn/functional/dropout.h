// Dropout as a differentiable function.
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

}  // namespace tutti::nn
