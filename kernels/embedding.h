// The kernels for embedding tables that every device provides: they look rows up and add gradients
// to them.
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

struct Embedding {
  /// Computes out[i..., :] = weight[indices[i...], :]. `indices` is int64 of any shape and strides,
  /// `out` is contiguous of shape indices.shape + (D). An index outside the table throws a
  /// ValueError on the CPU; a GPU writes NaN there.
  void (*gather)(const Tensor& weight, const Tensor& indices, const Tensor& out);
  /// Computes weight_grad[indices[i...], :] += g[i..., :]. Gradients are added in float64, in
  /// row-major order of the indices, so that results are deterministic, and rounded once.
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
