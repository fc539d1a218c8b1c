// The options of convolution, matrix products and pooling, which callers of the library see, too.
#pragma once

#include "../core/tensor.h"

#include <atomic>
#include <vector>

namespace tutti::kernels {

/// The options of a convolution, with one number for each spatial dimension. nn::convolution also
/// takes a single number for all of them.
struct ConvOptions {
  Dims stride = {1};
  Dims padding = {0};
  Dims dilation = {1};
  std::int64_t groups = 1;
};

/// Whether convolutions on the CPU are direct sums always: nn::set_exact_convolutions().
inline constinit std::atomic<bool> exact_convolutions{false};

/// The options of pooling, with one number for each spatial dimension. Padding is at most half of
/// the kernel.
struct PoolOptions {
  Dims kernel = {};
  Dims stride = {};
  Dims padding = {};
  bool count_include_pad = true;  ///< whether padding counts in the divisor of an average
  /// Whether the last window may reach beyond the padding on the right, so that every element is in
  /// a window if the stride is at most the kernel. The kernels read the number of windows from the
  /// output's shape.
  bool ceil_mode = false;
};

/// The options of interpolation. Factors, one for each spatial dimension, stand for those of the
/// sizes where the caller chose them.
struct InterpolationOptions {
  bool linear = false;  ///< else the nearest element
  bool align_corners = false;
  std::vector<double> factors = {};
};

/// Returns the dtype of max pooling's indices: uint8 for windows of fewer than 256 elements, else
/// int64.
inline DType pool_index_dtype(const Dims& kernel) {
  return product(kernel, 0, kernel.size()) < 256 ? uint8 : int64;
}

}  // namespace tutti::kernels
