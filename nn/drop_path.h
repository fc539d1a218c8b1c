// DropPath: stochastic depth as a layer. It drops whole samples in training, usually the residual
// of a block, and returns its input in evaluation.
#pragma once

#include "module.h"

namespace tutti::nn {

/// The options of DropPath.
struct DropPathOptions {
  /// The probability that a sample is zeroed. The others are scaled by 1 / (1 - p).
  double p = 0;
};

/// A layer that zeroes random samples in training (nn::drop_path).
class DropPath : public LayerWith<DropPathOptions> {
 public:
  /// ValueError unless 0 <= p <= 1.
  explicit DropPath(const Options& options = {});

  /// Maps (N, ...) to the same shape. Draws its random numbers from the calling thread's default
  /// generator.
  Tensor forward(const Tensor& input) override;
  std::string describe() const override;
};

}  // namespace tutti::nn
