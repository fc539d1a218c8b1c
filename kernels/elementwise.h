// The elementwise kernels that every device provides. Tensors may have any strides; inputs
// broadcast to the output's shape. Callers pass outputs of the right shape and dtype: kernels
// neither record gradients nor allocate results.
#pragma once

#include "../core/tensor.h"
#include "elementwise_functions.h"

namespace tutti::kernels {

struct Elementwise {
  void (*fill)(const Tensor& out, double value);
  /// Computes out = in. Any dtype converts to any other.
  void (*copy)(const Tensor& in, const Tensor& out);
  /// Computes out = op(in). 16-bit types are computed in float32.
  void (*unary)(Unary op, const Tensor& in, const Tensor& out);
  /// Computes out = op(a, b). a and b have one dtype; 16-bit types are computed in float32.
  void (*binary)(Binary op, const Tensor& a, const Tensor& b, const Tensor& out);
  /// Computes out = op(a, b) with a number b, or op(b, a) if `reversed` is set.
  void (*binary_scalar)(Binary op, const Tensor& a, double b, bool reversed, const Tensor& out);
  /// Computes y += alpha * x. x may have another dtype: bfloat16 gradients are added to float32
  /// ones.
  void (*axpy)(double alpha, const Tensor& x, const Tensor& y);
  /// Computes out = condition ? a : b.
  void (*where)(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out);
};

namespace cpu {
const Elementwise& elementwise();
}
namespace cuda {
const Elementwise& elementwise();
}
/// Returns the table of elementwise kernels of `device`. Every family of kernels has such a table.
inline const Elementwise& elementwise(Device device) {
  return device.is_cpu() ? cpu::elementwise() : cuda::elementwise();
}

}  // namespace tutti::kernels
