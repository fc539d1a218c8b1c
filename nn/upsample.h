// The layer that changes the spatial sizes of its input. The operation is nn::interpolate.
#pragma once

#include "functional/interpolate.h"
#include "module.h"

namespace tutti::nn {

/// A layer that interpolates its input (N, C, ...) to other spatial sizes (nn::interpolate).
class Upsample : public LayerWith<InterpolateOptions> {
 public:
  explicit Upsample(const Options& options) : LayerWith(options) {}

  Tensor forward(const Tensor& input) override { return interpolate(input, options_); }
  std::string describe() const override;
};

}  // namespace tutti::nn
