// The layer normalisation kernels that every device provides. x is seen as rows of D values, each
// of which is normalised by itself.
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

/// The table of a device's layer normalisation kernels. x, y, dy and dx are row-major without gaps,
/// of one dtype, with rows * D elements. weight, bias and their gradients are float32 or float64
/// with D elements, or are undefined. mean and rstd are float64, one for each row. Tensors may be
/// empty. The results do not depend on the thread count.
struct LayerNorm {
  /// Computes y = (x - mean) rstd weight + bias with rstd = 1 / sqrt(var + eps), var biased.
  void (*forward)(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                  const Tensor& y, const Tensor& mean, const Tensor& rstd);
  /// Computes dx = rstd (g - mean(g) - z mean(g z)) with z = (x - mean) rstd and g = dy weight. dx
  /// may be dy.
  void (*input_grad)(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                     const Tensor& weight, const Tensor& dx);
  /// Writes the sums of dy z and of dy over the rows; either output may be undefined.
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
