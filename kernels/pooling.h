// What a device must be able to do for pooling over one to three spatial dimensions of (N, C, ...).
// Outputs come in the layout that the caller allocated; channels_last is the fast one. Shapes are
// the caller's to check (nn/functional/pooling.h does).
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

/// One number for each spatial dimension. Padding is at most half of the kernel.
struct PoolOptions {
  Dims kernel = {};
  Dims stride = {};
  Dims padding = {};
  bool count_include_pad = true;  ///< average: whether padding counts in the divisor
};

/// The dtype of max pooling's indices: one byte where the window is small enough.
inline DType pool_index_dtype(const Dims& kernel) {
  return product(kernel, 0, kernel.size()) < 256 ? uint8 : int64;
}

/// The pooling functions of a device. A window is reduced to its maximum or its average.
struct Pooling {
  /// `index` (the shape of y, pool_index_dtype) gets the row-major position within the window of
  /// the first largest element. It may be undefined where no gradient is needed. NaN counts as
  /// larger than everything or is passed over, as is faster on the device.
  void (*max_forward)(const Tensor& x, const PoolOptions&, const Tensor& y, const Tensor& index);
  void (*max_backward)(const Tensor& dy, const Tensor& index, const PoolOptions&, const Tensor& dx);
  void (*average_forward)(const Tensor& x, const PoolOptions&, const Tensor& y);
  void (*average_backward)(const Tensor& dy, const PoolOptions&, const Tensor& dx);
  /// Window o of a dimension with `in` elements and `out` windows: floor(o in / out) up to ceil((o
  /// + 1) in / out).
  void (*adaptive_average_forward)(const Tensor& x, const Tensor& y);
  void (*adaptive_average_backward)(const Tensor& dy, const Tensor& dx);
};

namespace cpu {
const Pooling& pooling();
}
namespace cuda {
const Pooling& pooling();
}
/// The pooling kernels of `device`.
inline const Pooling& pooling(Device device) {
  return device.is_cpu() ? cpu::pooling() : cuda::pooling();
}

}  // namespace tutti::kernels
