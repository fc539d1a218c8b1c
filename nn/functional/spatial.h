// What convolution and pooling share: options that hold one number for each spatial dimension, and
// output sizes.
#pragma once

#include "../../core/dims.h"

namespace tutti::nn {

/// `values` for `rank` spatial dimensions: a single value counts for all. ValueError that names
/// `op` and the option where the count is wrong or a value is below `least`.
Dims spatial_option(const char* op, const char* name, const Dims& values, int rank,
                    std::int64_t least);

/// floor((in + 2 padding - dilation (kernel - 1) - 1) / stride) + 1 for every spatial dimension of
/// `input` (N, C, ...). ShapeError where the kernel reaches beyond the padded input, or any of the
/// numbers is 2^31 or more.
Dims spatial_output(const char* op, const Shape& input, const Dims& kernel, const Dims& stride,
                    const Dims& padding, const Dims& dilation);

}  // namespace tutti::nn
