// Identity: a layer that returns its input, as a placeholder for one that a model leaves out.
#pragma once

#include "module.h"

namespace tutti::nn {

class Identity : public Layer {
 public:
  Tensor forward(const Tensor& input) override { return input; }
};

}  // namespace tutti::nn
