// The kernels along the class dimension that every device provides: softmax, log-softmax, and
// cross-entropy with its gradient. Tensors may have any strides; 16-bit types are computed in
// float32; losses and normalizers are float32 or wider (accumulate_dtype of the logits).
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

/// The options of cross-entropy's targets.
struct CrossEntropyRule {
  double label_smoothing = 0;        ///< s: the target distribution is (1-s) one-hot + s/C uniform
  std::int64_t ignore_index = -100;  ///< positions with this target have loss 0 and gradient 0
};

/// The table of a device's softmax and cross-entropy kernels.
struct Softmax {
  /// Computes softmax along `dim`, or its logarithm if `log` is set.
  void (*forward)(const Tensor& in, int dim, bool log, const Tensor& out);
  /// Computes the gradient from the output `y`: y (g - sum g y), or g - exp(y) sum g where `log`.
  void (*backward)(const Tensor& g, const Tensor& y, int dim, bool log, const Tensor& out);
  /// Writes for every position the loss and the normalizer log sum_c exp(logits_c - max logits),
  /// both of the targets' shape. `logits` has shape (N, C, d...), and `targets` is int64 of shape
  /// (N, d...). On the CPU, a target outside [0, C) that is not ignored throws a ValueError before
  /// anything is written to `losses`; a GPU writes NaN there.
  void (*cross_entropy)(const Tensor& logits, const Tensor& targets, const CrossEntropyRule& rule,
                        const Tensor& losses, const Tensor& normalizers);
  /// Writes the gradient of sum(g * losses); `g` has the targets' shape and the losses' dtype.
  void (*cross_entropy_grad)(const Tensor& g, const Tensor& logits, const Tensor& targets,
                             const CrossEntropyRule& rule, const Tensor& normalizers,
                             const Tensor& out);
};

namespace cpu {
const Softmax& softmax();
}
namespace cuda {
const Softmax& softmax();
}
inline const Softmax& softmax(Device device) {
  return device.is_cpu() ? cpu::softmax() : cuda::softmax();
}

}  // namespace tutti::kernels
