// The activation functions as layers without options or state. Their formulas stand in
// autograd/functions.h.
#pragma once

#include "module.h"

namespace tutti::nn {

class ReLU : public Layer {
 public:
  Tensor forward(const Tensor& input) override;
};

class GELU : public Layer {
 public:
  Tensor forward(const Tensor& input) override;
};

class Sigmoid : public Layer {
 public:
  Tensor forward(const Tensor& input) override;
};

class Tanh : public Layer {
 public:
  Tensor forward(const Tensor& input) override;
};

}  // namespace tutti::nn
