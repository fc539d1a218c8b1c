// What a device must be able to do along dimensions: sums and extrema.
#pragma once

#include "../core/tensor.h"
#include "reduce_functions.h"

namespace tutti::kernels {

struct Reduce {
  /// `out` has the rank of `in`, with size 1 in every reduced dimension. Sums of 16-bit types are
  /// taken in float32, and kept in it where `out` is. An empty sum is 0; an empty max or min is the
  /// caller's error. The result does not depend on the thread count.
  void (*reduce)(Reduction op, const Tensor& in, const Tensor& out);
  /// Index (int64) of the first largest element along `dim`; `out` has size 1 there.
  void (*argmax)(const Tensor& in, int dim, const Tensor& out);
};

namespace cpu {
const Reduce& reduce();
}
namespace cuda {
const Reduce& reduce();
}
inline const Reduce& reduce(Device device) {
  return device.is_cpu() ? cpu::reduce() : cuda::reduce();
}

}  // namespace tutti::kernels
