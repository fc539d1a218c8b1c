// Linear: the fully connected layer, y = x W^T + b.
#pragma once

#include "functional/linear.h"
#include "module.h"

namespace tutti::nn {

/// The options of Linear.
struct LinearOptions {
  /// The numbers of features of input and output.
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool bias = true;
};

/// A layer that computes x W^T + b (nn::linear).
class Linear : public LayerWith<LinearOptions> {
 public:
  /// Draws weight and bias from U(-1/sqrt(in), 1/sqrt(in)). ValueError unless in and out are
  /// positive.
  explicit Linear(const Options& options);

  /// Maps (..., in) to (..., out).
  Tensor forward(const Tensor& input) override;
  std::string describe() const override;

  /// The weight has shape (out, in).
  const Tensor& weight;
  /// The bias has shape (out,), or is undefined if the layer has none.
  const Tensor& bias;
};

}  // namespace tutti::nn
