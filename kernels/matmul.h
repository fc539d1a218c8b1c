// What a device must be able to do for matrix products, batched.
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

/// Joined to a product: what libraries can do to an element before they store it. No gelu, since
/// cuBLASLt's is the tanh approximation and ours (kernels/elementwise.h) is exact.
enum class Activation { none, relu };

/// z -> activation(z + bias)
struct Epilogue {
  Tensor bias = {};  ///< (n), dense; undefined: none
  Activation activation = Activation::none;
};

/// The matrix product of a device.
struct Matmul {
  /// out (..., m, n) = epilogue(a (..., m, k) b (..., k, n)). All have the same rank, at least 2;
  /// batch dimensions of size 1 in a or b broadcast. Operands may be strided (transposed). With a
  /// 16-bit a the others may have its dtype or float32, and sums are taken in float32; otherwise
  /// one dtype. k = 0: the epilogue of zeros.
  void (*matmul)(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out);
};

namespace cpu {
const Matmul& matmul();
}
namespace cuda {
const Matmul& matmul();
}
/// The matrix product kernels of `device`.
inline const Matmul& matmul(Device device) {
  return device.is_cpu() ? cpu::matmul() : cuda::matmul();
}

}  // namespace tutti::kernels
