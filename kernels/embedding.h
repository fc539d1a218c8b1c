// What a device must be able to do for embedding tables: look rows up, and add gradients back to
// them.
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

struct Embedding {
  /// out[i..., :] = weight[indices[i...], :]. `indices` int64 of any shape and strides, `out`
  /// contiguous of shape indices.shape + (D). On the CPU an index outside the table is a
  /// ValueError; a GPU writes NaN there.
  void (*gather)(const Tensor& weight, const Tensor& indices, const Tensor& out);
  /// weight_grad[indices[i...], :] += g[i..., :], added in row-major order of the indices:
  /// deterministic.
  void (*scatter_add)(const Tensor& g, const Tensor& indices, const Tensor& weight_grad);
};

namespace cpu {
const Embedding& embedding();
}
namespace cuda {
const Embedding& embedding();
}
inline const Embedding& embedding(Device device) {
  return device.is_cpu() ? cpu::embedding() : cuda::embedding();
}

}  // namespace tutti::kernels
