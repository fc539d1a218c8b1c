// Losses as modules, which keep their options. The operations are in functional/loss.h.
#pragma once

#include "functional/loss.h"
#include "module.h"

namespace tutti::nn {

/// The cross-entropy of logits and class indices (nn::cross_entropy).
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

}  // namespace tutti::nn
