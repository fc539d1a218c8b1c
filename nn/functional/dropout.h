// Dropout as a function.
#pragma once

#include "../../core/random.h"
#include "../../core/tensor.h"

namespace tutti::nn {

/// In training, zeroes each element with probability `p` and scales the others by 1 / (1 - p);
/// otherwise returns `x`. One 32-bit number is drawn for each element in row-major order, whatever
/// the memory layout or the thread count. ValueError unless 0 <= p <= 1.
Tensor dropout(const Tensor& x, double p, bool training,
               Generator& generator = default_generator());

}  // namespace tutti::nn
