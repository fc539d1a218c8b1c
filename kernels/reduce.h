// The reductions along dimensions that every device provides: sums and extrema.
#pragma once

#include "../core/tensor.h"
#include "reduce_functions.h"

namespace tutti::kernels {

struct Reduce {
  /// `out` has the rank of `in`, with size 1 in every reduced dimension. Sums are taken in float32
  /// or wider; `out` may be float32 where `in` has 16 bits, and int64 where `in` has bytes. An
  /// empty sum is 0; the caller refuses an empty max or min. The result does not depend on the
  /// thread count.
  void (*reduce)(Reduction op, const Tensor& in, const Tensor& out);
  /// Writes the indices (int64) of the k largest elements along `dim`, the largest first, where k
  /// is the size of `out` in `dim`. NaN is larger than every number; equal elements come in the
  /// order of their indices.
  void (*topk)(const Tensor& in, int dim, const Tensor& out);
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
