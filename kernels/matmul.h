// What a device must be able to do for matrix products, batched.
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

struct Matmul {
  /// out (..., m, n) = a (..., m, k) b (..., k, n) + bias (n). All have the same rank, at least 2; batch dimensions of
  /// size 1 in a or b broadcast. `bias` is dense, or undefined. Operands may be strided (transposed). With a 16-bit a
  /// the others may have its dtype or float32, and sums are taken in float32; otherwise one dtype. k = 0: the bias.
  void (*matmul)(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out);
};

namespace cpu {
const Matmul& matmul();
}
namespace cuda {
const Matmul& matmul();
}
inline const Matmul& matmul(Device device) { return device.is_cpu() ? cpu::matmul() : cuda::matmul(); }

}  // namespace tutti::kernels
