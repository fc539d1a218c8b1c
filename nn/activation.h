// The activation functions as layers without options or state. Their formulas stand in
// autograd/functions.h.
#pragma once

#include "module.h"

namespace tutti::nn {

/// The rectified linear unit as a layer (relu).
class ReLU : public Layer {
 public:
  Tensor forward(const Tensor& input) override;
};

/// The Gaussian error linear unit as a layer (gelu).
class GELU : public Layer {
 public:
  Tensor forward(const Tensor& input) override;
};

/// The logistic function as a layer (sigmoid).
class Sigmoid : public Layer {
 public:
  Tensor forward(const Tensor& input) override;
};

/// The hyperbolic tangent as a layer (tanh).
class Tanh : public Layer {
 public:
  Tensor forward(const Tensor& input) override;
};

}  // namespace tutti::nn
