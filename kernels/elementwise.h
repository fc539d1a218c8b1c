// What a device must be able to do element by element. Tensors may have any strides; inputs
// broadcast to the output's shape. Nothing is recorded or made to be returned here: callers pass
// outputs of the right shape and dtype.
#pragma once

#include "../core/tensor.h"
#include "elementwise_functions.h"

namespace tutti::kernels {

struct Elementwise {
  void (*fill)(const Tensor& out, double value);
  /// out = in, converted between any two dtypes.
  void (*copy)(const Tensor& in, const Tensor& out);
  void (*unary)(Unary op, const Tensor& in, const Tensor& out);
  /// Operands share a dtype. 16-bit types compute in float32.
  void (*binary)(Binary op, const Tensor& a, const Tensor& b, const Tensor& out);
  /// The same with a number for the second operand (`reversed`: for the first).
  void (*binary_scalar)(Binary op, const Tensor& a, double b, bool reversed, const Tensor& out);
  /// y += alpha * x; x may have another dtype (gradients in bfloat16 onto float32).
  void (*axpy)(double alpha, const Tensor& x, const Tensor& y);
  /// out = condition ? a : b
  void (*where)(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out);
};

namespace cpu {
const Elementwise& elementwise();
}
namespace cuda {
const Elementwise& elementwise();
}
/// The table of a device. Every family of kernels has one, built the same way.
inline const Elementwise& elementwise(Device device) {
  return device.is_cpu() ? cpu::elementwise() : cuda::elementwise();
}

}  // namespace tutti::kernels
