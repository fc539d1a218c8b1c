// The helpers that convolution, pooling and losses share: options with one number for each spatial
// dimension, the shapes of outputs, and values of channels. An implementation detail of nn/.
#pragma once

#include "../../core/tensor.h"

namespace tutti::nn {

/// Returns `values` with one number for each of `rank` spatial dimensions; a single value is
/// repeated. ValueError that names `op` and the option if the count is wrong or a value is below
/// `minimum`.
Dims expand_option(const char* op, const char* name, const Dims& values, int rank,
                   std::int64_t minimum);

/// The windows of a convolution or pooling, with one number for each spatial dimension.
struct Windows {
  Dims kernel, stride, padding, dilation;
  /// Whether a last window that reaches beyond the padding counts, provided that it begins before
  /// the padding on the right.
  bool ceil_mode = false;
};

/// Returns the spatial sizes of the output for `input` (N, C, ...): floor((in + 2 padding -
/// dilation (kernel - 1) - 1) / stride) + 1, or rounded up with ceil_mode. ShapeError if a window
/// is larger than the padded input (with ceil_mode by the stride or more), or if any of the numbers
/// is 2^31 or more.
Dims output_sizes(const char* op, const Shape& input, const Windows& windows);

/// Returns "3" if all numbers are equal, else "(3, 5)": for describe().
std::string to_short_string(const Dims& dims);

/// Returns a view of values (C) in a shape of `rank` dimensions that broadcasts to (N, C, ...).
Tensor view_per_channel(const Tensor& values, int rank);

}  // namespace tutti::nn
