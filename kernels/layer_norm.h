// What a device must be able to do for layer normalisation: x seen as rows of D values, each
// normalised by itself.
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

/// x, y, dy, dx: row-major without gaps, of one dtype, rows * D elements. weight, bias and their
/// gradients: float32 or float64, D elements, undefined for none. mean and rstd: float64, one for
/// each row. Empty tensors are legal. The results do not depend on the thread count.
struct LayerNorm {
  /// y = (x - mean) rstd weight + bias with rstd = 1 / sqrt(var + eps), var biased.
  void (*forward)(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                  const Tensor& y, const Tensor& mean, const Tensor& rstd);
  /// With z = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - z mean(g z)). dx may be
  /// dy.
  void (*input_grad)(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                     const Tensor& weight, const Tensor& dx);
  /// sum of dy z and of dy over the rows; either may be undefined.
  void (*parameter_grad)(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                         const Tensor& weight_grad, const Tensor& bias_grad);
};

namespace cpu {
const LayerNorm& layer_norm();
}
namespace cuda {
const LayerNorm& layer_norm();
}
inline const LayerNorm& layer_norm(Device device) {
  return device.is_cpu() ? cpu::layer_norm() : cuda::layer_norm();
}

}  // namespace tutti::kernels
