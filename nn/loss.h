// Losses as modules, which keep their options. The operations are in functional/loss.h.
#pragma once

#include "functional/loss.h"
#include "module.h"

namespace tutti::nn {

/// The cross-entropy of logits and class indices or class probabilities (nn::cross_entropy). A
/// weight of the classes is a buffer, which moves and is saved with the module.
class CrossEntropyLoss : public Module {
 public:
  using Options = CrossEntropyOptions;
  CrossEntropyLoss() : CrossEntropyLoss(Options{}) {}
  /// ValueError for a label smoothing outside [0, 1].
  explicit CrossEntropyLoss(const Options& options);

  /// Returns nn::cross_entropy() with these options.
  Tensor operator()(const Tensor& logits, const Tensor& targets) const;
  std::string describe() const override;
  const Options& options() const { return options_; }

 private:
  Options options_;
  Tensor& weight_ = add_buffer("weight", options_.weight);
};

/// The negative log-likelihood of class indices (nn::nll_loss). A weight of the classes is a
/// buffer.
class NLLLoss : public Module {
 public:
  using Options = NLLLossOptions;
  NLLLoss() : NLLLoss(Options{}) {}
  explicit NLLLoss(const Options& options) : options_(options) {}

  /// Returns nn::nll_loss() with these options.
  Tensor operator()(const Tensor& input, const Tensor& targets) const;
  std::string describe() const override;
  const Options& options() const { return options_; }

 private:
  Options options_;
  Tensor& weight_ = add_buffer("weight", options_.weight);
};

/// The mean squared error (nn::mse_loss).
class MSELoss : public Module {
 public:
  struct Options {
    LossReduction reduction = LossReduction::mean;
  };
  MSELoss() : MSELoss(Options{}) {}
  explicit MSELoss(const Options& options) : options_(options) {}

  /// Returns nn::mse_loss() with these options.
  Tensor operator()(const Tensor& input, const Tensor& target) const;
  std::string describe() const override;
  const Options& options() const { return options_; }

 private:
  Options options_;
};

/// The smooth L1 loss (nn::smooth_l1_loss).
class SmoothL1Loss : public Module {
 public:
  using Options = SmoothL1Options;
  SmoothL1Loss() : SmoothL1Loss(Options{}) {}
  /// ValueError for a negative beta.
  explicit SmoothL1Loss(const Options& options);

  /// Returns nn::smooth_l1_loss() with these options.
  Tensor operator()(const Tensor& input, const Tensor& target) const;
  std::string describe() const override;
  const Options& options() const { return options_; }

 private:
  Options options_;
};

/// The binary cross-entropy of probabilities (nn::binary_cross_entropy).
class BCELoss : public Module {
 public:
  struct Options {
    LossReduction reduction = LossReduction::mean;
  };
  BCELoss() : BCELoss(Options{}) {}
  explicit BCELoss(const Options& options) : options_(options) {}

  /// Returns nn::binary_cross_entropy() with these options.
  Tensor operator()(const Tensor& input, const Tensor& target) const;
  std::string describe() const override;
  const Options& options() const { return options_; }

 private:
  Options options_;
};

/// The binary cross-entropy of logits (nn::binary_cross_entropy_with_logits). A `pos_weight` is a
/// buffer, which moves and is saved with the module.
class BCEWithLogitsLoss : public Module {
 public:
  using Options = BinaryCrossEntropyOptions;
  BCEWithLogitsLoss() : BCEWithLogitsLoss(Options{}) {}
  explicit BCEWithLogitsLoss(const Options& options) : options_(options) {}

  /// Returns nn::binary_cross_entropy_with_logits() with these options.
  Tensor operator()(const Tensor& logits, const Tensor& target) const;
  std::string describe() const override;
  const Options& options() const { return options_; }

 private:
  Options options_;
  Tensor& pos_weight_ = add_buffer("pos_weight", options_.pos_weight);
};

}  // namespace tutti::nn
