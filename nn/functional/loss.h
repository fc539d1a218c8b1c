// Losses as functions. All compute in float32 or wider: bfloat16 inputs give a float32 loss.
#pragma once

#include "../../core/tensor.h"

namespace tutti::nn {

/// `mean` divides by the number of elements that count, `none` keeps one loss for each.
enum class LossReduction { mean, sum, none };

struct CrossEntropyOptions {
  LossReduction reduction = LossReduction::mean;
  std::int64_t ignore_index =
      -100;                    ///< targets with this value count nothing, not even in the mean
  double label_smoothing = 0;  ///< in [0, 1]
};

/// -log softmax(logits)[target]. `logits` (N, C) or (N, C, d1, ...), unnormalised; `targets` int64
/// (N) or (N, d1, ...), from 0 to C-1. With label smoothing s the target distribution is (1-s)
/// one-hot + s/C uniform. The mean of no targets is NaN. ShapeError, DTypeError, DeviceError;
/// ValueError for a smoothing or (on the CPU) a target outside its range.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {});

/// (input - target)^2, elementwise; shapes must be equal (ShapeError: broadcasting here is nearly
/// always a mistake).
Tensor mse_loss(const Tensor& input, const Tensor& target,
                LossReduction reduction = LossReduction::mean);

}  // namespace tutti::nn
