// The activation functions as layers without options or state. Their formulas stand in
// autograd/functions.h.
#pragma once

#include "module.h"

namespace tutti::nn {

/// max(x, 0).
class ReLU : public Layer {
 public:
  Tensor forward(const Tensor& input) override;
};

/// x times the cumulative normal distribution of x.
class GELU : public Layer {
 public:
  Tensor forward(const Tensor& input) override;
};

/// 1 / (1 + exp(-x)).
class Sigmoid : public Layer {
 public:
  Tensor forward(const Tensor& input) override;
};

/// The hyperbolic tangent.
class Tanh : public Layer {
 public:
  Tensor forward(const Tensor& input) override;
};

}  // namespace tutti::nn
