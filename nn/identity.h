// Identity: a layer that returns its input, as a placeholder for one that a model leaves out.
#pragma once

#include "module.h"

namespace tutti::nn {

/// A layer that returns its input.
class Identity : public Layer {
 public:
  Tensor forward(const Tensor& input) override { return input; }
};

}  // namespace tutti::nn
