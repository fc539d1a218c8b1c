// The kernels that read and add elements at indices along one dimension, on every device. A table
// whose rows are looked up as a whole is an embedding (embedding.h).
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

/// The table of a device's indexing kernels. `index` is int64; tensors may have any strides.
struct Indexing {
  /// Computes out[p] = x[p with index[p] in place of p's dimension `dim`]. `out` and `index` have
  /// one shape, which is at most that of `x` in the other dimensions. An index outside of `x`
  /// throws a ValueError on the CPU before anything is written; a GPU writes NaN there, or 0 as an
  /// integer. The error names `op`.
  void (*gather)(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& out);
  /// Computes out[p with index[p] in place of p's dimension `dim`] += g[p], the gradient of
  /// gather(). `out` is float32 or wider. Elements are added in the order of their positions along
  /// `dim`, so that results are deterministic. Indices outside of `out` are skipped on a GPU and
  /// must not occur on the CPU.
  void (*scatter_add)(const Tensor& g, int dim, const Tensor& index, const Tensor& out);
};

namespace cpu {
const Indexing& indexing();
}
namespace cuda {
const Indexing& indexing();
}
inline const Indexing& indexing(Device device) {
  return device.is_cpu() ? cpu::indexing() : cuda::indexing();
}

/// Returns `x` under the shape of `index`, with stride 0 along `dim`: each element is the one from
/// which an index counts.
inline Tensor first_elements(const Tensor& x, int dim, const Tensor& index) {
  Strides strides = x.strides();
  strides[dim] = 0;
  return x.alias(index.shape(), strides, x.offset());
}

}  // namespace tutti::kernels
