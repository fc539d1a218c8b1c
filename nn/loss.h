// Losses as modules, which keep their options. The operations are in functional/loss.h.
#pragma once

#include "functional/loss.h"
#include "module.h"

namespace tutti::nn {

/// The options of a loss that has no others.
struct LossOptions {
  LossReduction reduction = LossReduction::mean;
};

/// The base class of the losses. Each of them computes the loss of its two arguments in
/// operator()(const Tensor&, const Tensor&).
template <class OptionsType = LossOptions>
class Loss : public Module {
 public:
  using Options = OptionsType;
  explicit Loss(const Options& options = {}) : options_(options) {}

  std::string describe() const override {
    return std::string("reduction=") + nn::to_string(options_.reduction);
  }
  const Options& options() const { return options_; }

 protected:
  Options options_;
};

/// The cross-entropy of logits and class indices or class probabilities (nn::cross_entropy). A
/// weight of the classes is a buffer, which moves and is saved with the module.
class CrossEntropyLoss : public Loss<CrossEntropyOptions> {
 public:
  /// ValueError for a label smoothing outside [0, 1].
  explicit CrossEntropyLoss(const Options& options = {});

  /// Returns nn::cross_entropy() with these options.
  Tensor operator()(const Tensor& logits, const Tensor& targets) const;
  std::string describe() const override;

 private:
  const Tensor& weight_ = add_buffer("weight", options_.weight);
};

/// The mean squared error (nn::mse_loss).
class MSELoss : public Loss<> {
 public:
  using Loss::Loss;

  /// Returns nn::mse_loss() with these options.
  Tensor operator()(const Tensor& input, const Tensor& target) const;
};

/// The binary cross-entropy of logits (nn::binary_cross_entropy_with_logits). A `pos_weight` is a
/// buffer, which moves and is saved with the module.
class BCEWithLogitsLoss : public Loss<BinaryCrossEntropyOptions> {
 public:
  using Loss::Loss;

  /// Returns nn::binary_cross_entropy_with_logits() with these options.
  Tensor operator()(const Tensor& logits, const Tensor& target) const;

 private:
  const Tensor& pos_weight_ = add_buffer("pos_weight", options_.pos_weight);
};

}  // namespace tutti::nn
