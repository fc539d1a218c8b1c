// The matrix product kernel that every device provides, with batches and an epilogue.
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

/// The activations that a matrix product can apply to its elements before it stores them. gelu is
/// not among them, because cuBLASLt has only its tanh approximation, while the library's gelu is
/// exact.
enum class Activation { none, relu };

/// An epilogue maps an element z of the product to activation(z + bias).
struct Epilogue {
  Tensor bias = {};  ///< (n), dense; undefined for none
  Activation activation = Activation::none;
};

/// The table of a device's matrix product kernel.
struct Matmul {
  /// Computes out (..., m, n) = epilogue(a (..., m, k) b (..., k, n)). All have the same rank, at
  /// least 2; batch dimensions of size 1 in a or b broadcast. Tensors may have any strides. With a
  /// 16-bit a the others have its dtype or float32, and sums are taken in float32; otherwise all
  /// have one dtype. With k = 0 the result is the epilogue of zeros.
  void (*matmul)(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out);
};

namespace cpu {
const Matmul& matmul();
}
namespace cuda {
const Matmul& matmul();
}
/// Returns the matrix product kernels of `device`.
inline const Matmul& matmul(Device device) {
  return device.is_cpu() ? cpu::matmul() : cuda::matmul();
}

}  // namespace tutti::kernels
