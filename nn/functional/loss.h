// Losses as differentiable functions. They compute in float32 or wider: 16-bit inputs give a
// float32 loss. Targets that are not class indices have the dtype of the input, or float32 beside a
// 16-bit input (Autocast).
#pragma once

#include "../../core/tensor.h"

namespace tutti::nn {

/// `mean` divides by the number of targets that count; `none` returns one loss for each target.
enum class LossReduction { mean, sum, none };

/// Returns "mean", "sum" or "none".
const char* to_string(LossReduction reduction);

/// The options of cross_entropy().
struct CrossEntropyOptions {
  LossReduction reduction = LossReduction::mean;
  /// Targets with this value have no loss, and the mean does not count them. Class probabilities
  /// have no such value: with them it must be negative.
  std::int64_t ignore_index = -100;
  /// The share of the uniform distribution in the target distribution, from 0 to 1.
  double label_smoothing = 0;
  /// A factor for each class, of shape (C), without a gradient; 1 for each class if undefined.
  Tensor weight = {};
};

/// Returns -sum_c weight_c p_c log softmax(logits)_c. `logits`, unnormalised, have shape (N, C) or
/// (N, C, d1, ...). `targets` give the target distribution p in one of two forms:
/// - class indices: int64 from 0 to C-1, of shape (N) or (N, d1, ...),
/// - class probabilities: floating, of the shape of the logits. A gradient flows to them.
///
/// With label smoothing s, p becomes (1-s) p + s/C. The mean divides by the sum of the weights of
/// the classes of the indices that are not ignored, and for probabilities by the number of
/// positions, whatever the weights. The mean of no targets is NaN.
///
/// With class indices, the forward and the backward pass over the logits once each, in any layout.
/// The gradient is written in place of logits that no other tensor shares, unless the graph is
/// retained. So of
///   const Tensor loss = cross_entropy(interpolate(x, options), targets);
///   loss.backward();
/// one large tensor exists at a time. A name for the upsampled logits, or backward() in the same
/// statement, would keep them.
///
/// ShapeError, DTypeError or DeviceError for tensors that do not fit together; ValueError for a
/// smoothing or (on the CPU) a class index outside its range, and for an `ignore_index` with
/// probabilities. On a GPU the loss of an index outside its range is NaN.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {});

/// Returns (input - target)^2, elementwise. ShapeError unless both shapes are equal: broadcasting
/// in a loss is nearly always a mistake.
Tensor mse_loss(const Tensor& input, const Tensor& target,
                LossReduction reduction = LossReduction::mean);

/// The options of binary_cross_entropy_with_logits().
struct BinaryCrossEntropyOptions {
  LossReduction reduction = LossReduction::mean;
  /// A factor of the loss of positive targets, which broadcasts to the shape of the logits, without
  /// a gradient; 1 if undefined. A factor above 1 raises the recall of a rare class.
  Tensor pos_weight = {};
};

/// Returns -(pos_weight target log sigmoid(logits) + (1 - target) log(1 - sigmoid(logits))),
/// elementwise and without overflow. ShapeError unless logits and target have one shape.
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target,
                                        const BinaryCrossEntropyOptions& options = {});

}  // namespace tutti::nn
