// Dropout as a layer. It drops elements in training and returns its input in evaluation.
#pragma once

#include "module.h"

namespace tutti::nn {

/// The options of Dropout.
struct DropoutOptions {
  /// The probability that an element is zeroed. The others are scaled by 1 / (1 - p).
  double p = 0.5;
};

/// A layer that zeroes random elements in training (nn::dropout).
class Dropout : public LayerWith<DropoutOptions> {
 public:
  /// ValueError unless 0 <= p <= 1.
  explicit Dropout(const Options& options = {});

  /// Draws its random numbers from the calling thread's default generator.
  Tensor forward(const Tensor& input) override;
  std::string describe() const override;
};

}  // namespace tutti::nn
