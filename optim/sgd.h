// Stochastic gradient descent with momentum, dampening, Nesterov's variant and weight decay, as
// PyTorch defines it:
//
//   g += weight_decay p
//   b = momentum b + (1 - dampening) g      (in the first update: b = g)
//   p -= lr (nesterov ? g + momentum b : b)
//
// If momentum is turned on after a parameter's first step, b starts from 0.
#pragma once

#include "optimizer.h"

namespace tutti::optim {

/// The options of SGD.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  /// Nesterov's variant needs a momentum above 0 and a dampening of 0.
  bool nesterov = false;
};

/// Stochastic gradient descent, with momentum if it is not 0.
class SGD : public OptimizerWith<SGDOptions> {
 public:
  SGD(std::vector<Tensor> parameters, Options options) : SGD({{std::move(parameters), options}}) {}
  explicit SGD(const std::vector<Group>& groups);

 protected:
  void update_group(int group, std::span<const kernels::FusedUpdate> updates) override;
};

}  // namespace tutti::optim
