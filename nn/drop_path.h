// DropPath: stochastic depth as a layer. It drops whole samples in training, usually the residual
// of a block, and returns its input in evaluation.
#pragma once

#include "module.h"

namespace tutti::nn {

/// A layer that zeroes random samples in training (nn::drop_path).
class DropPath : public Layer {
 public:
  struct Options {
    /// The probability that a sample is zeroed. The others are scaled by 1 / (1 - p).
    double p = 0;
  };
  DropPath() : DropPath(Options{}) {}
  /// ValueError unless 0 <= p <= 1.
  explicit DropPath(const Options& options);

  /// Maps (N, ...) to the same shape. Draws its random numbers from the calling thread's default
  /// generator.
  Tensor forward(const Tensor& input) override;
  std::string describe() const override;
  const Options& options() const { return options_; }

 private:
  Options options_;
};

}  // namespace tutti::nn
