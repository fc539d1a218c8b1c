// Losses as differentiable functions. They compute in float32 or wider: 16-bit inputs give a
// float32 loss.
#pragma once

#include "../../core/tensor.h"

namespace tutti::nn {

/// `mean` divides by the number of targets that count; `none` returns one loss for each target.
enum class LossReduction { mean, sum, none };

/// The options of cross_entropy().
struct CrossEntropyOptions {
  LossReduction reduction = LossReduction::mean;
  /// Targets with this value have no loss, and the mean does not count them.
  std::int64_t ignore_index = -100;
  /// The share of the uniform distribution in the target distribution, from 0 to 1.
  double label_smoothing = 0;
};

/// Returns -log softmax(logits)[target]. `logits`, unnormalised, have shape (N, C) or (N, C, d1,
/// ...); `targets` are int64 from 0 to C-1, of shape (N) or (N, d1, ...). With label smoothing s
/// the target distribution is (1-s) one-hot + s/C uniform. The mean of no targets is NaN.
/// ShapeError, DTypeError or DeviceError for tensors that do not fit together; ValueError for a
/// smoothing or (on the CPU) a target outside its range.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {});

/// Returns (input - target)^2, elementwise. ShapeError unless both shapes are equal: broadcasting
/// in a loss is nearly always a mistake.
Tensor mse_loss(const Tensor& input, const Tensor& target,
                LossReduction reduction = LossReduction::mean);

}  // namespace tutti::nn
