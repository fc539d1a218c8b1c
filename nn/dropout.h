// Dropout as a layer: active in training, the identity in evaluation.
#pragma once

#include "module.h"

namespace tutti::nn {

class Dropout : public Layer {
 public:
  struct Options {
    double p =
        0.5;  ///< probability that an element is zeroed; the others are scaled by 1 / (1 - p)
  };
  Dropout() : Dropout(Options{}) {}
  /// ValueError unless 0 <= p <= 1.
  explicit Dropout(const Options& options);

  /// Draws from the calling thread's default generator.
  Tensor forward(const Tensor& input) override;
  std::string describe() const override;
  const Options& options() const { return options_; }

 private:
  Options options_;
};

}  // namespace tutti::nn
