// Identity: returns its input; a placeholder where a model has nothing to do.
#pragma once

#include "module.h"

namespace tutti::nn {

class Identity : public Layer {
 public:
  Tensor forward(const Tensor& input) override { return input; }
};

}  // namespace tutti::nn
