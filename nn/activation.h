// The activation functions as layers without parameters. Their formulas stand in
// autograd/functions.h.
#pragma once

#include "../autograd/functions.h"
#include "module.h"

namespace tutti::nn {

/// The options of LeakyReLU.
struct LeakyReLUOptions {
  /// The factor of the elements below 0.
  double slope = 0.01;
};

/// A layer that computes an elementwise function without options.
template <Tensor (*function)(const Tensor&)>
class ActivationLayer : public Layer {
 public:
  Tensor forward(const Tensor& input) override { return function(input); }
};

/// The rectified linear unit as a layer (relu).
class ReLU : public ActivationLayer<relu> {};
/// The logistic function as a layer (sigmoid).
class Sigmoid : public ActivationLayer<sigmoid> {};
/// The hyperbolic tangent as a layer (tanh).
class Tanh : public ActivationLayer<tanh> {};

/// The leaky rectified linear unit as a layer (leaky_relu).
class LeakyReLU : public LayerWith<LeakyReLUOptions> {
 public:
  /// ValueError for a slope that is not finite.
  explicit LeakyReLU(const Options& options = {});

  Tensor forward(const Tensor& input) override;
  std::string describe() const override;
};

}  // namespace tutti::nn
