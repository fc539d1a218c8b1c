// The pooling kernels that every device provides, over one to three spatial dimensions of (N, C,
// ...). Results are written in the layout that the caller allocated; channels_last is the fast one.
// The caller checks the shapes (nn/functional/pooling.h does).
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

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

/// Returns the dtype of max pooling's indices: uint8 for windows of fewer than 256
/// elements, else int64.
inline DType pool_index_dtype(const Dims& kernel) {
  return product(kernel, 0, kernel.size()) < 256 ? uint8 : int64;
}

/// The table of a device's pooling kernels. A window is reduced to its maximum or its average.
struct Pooling {
  /// Writes to `index` (of y's shape, pool_index_dtype) the row-major position of the first largest
  /// element in its window. `index` may be undefined where no gradient is needed. NaN counts as
  /// larger than every number.
  void (*max_forward)(const Tensor& x, const PoolOptions&, const Tensor& y, const Tensor& index);
  void (*max_backward)(const Tensor& dy, const Tensor& index, const PoolOptions&, const Tensor& dx);
  void (*average_forward)(const Tensor& x, const PoolOptions&, const Tensor& y);
  void (*average_backward)(const Tensor& dy, const PoolOptions&, const Tensor& dx);
  /// Window o of a dimension with `in` elements and `out` windows reaches from floor(o in / out) to
  /// ceil((o + 1) in / out).
  void (*adaptive_average_forward)(const Tensor& x, const Tensor& y);
  void (*adaptive_average_backward)(const Tensor& dy, const Tensor& dx);
};

}  // namespace tutti::kernels
