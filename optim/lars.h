// LARS, layer-wise adaptive rate scaling (You, Gitman and Ginsburg, "Large batch training of
// convolutional networks", arXiv 1708.03888): momentum SGD in which every parameter tensor has a
// local rate:
//
//   local = trust_coefficient |p| / (|g| + weight_decay |p| + eps)
//   b = momentum b + lr local (g + weight_decay p)
//   p -= b
//
// The local rate is 1 if |p| or |g| is 0, and in groups with adapt = false (usual for biases and
// normalisation).
#pragma once

#include "optimizer.h"

namespace tutti::optim {

/// The options of LARS. `adapt` = false sets the local rate to 1.
struct LARSOptions {
  double lr = 1e-1;
  double momentum = 0.9;
  double weight_decay = 0;
  double trust_coefficient = 1e-3;
  double eps = 0;
  bool adapt = true;
};

/// Momentum SGD with a local learning rate for each parameter.
class LARS : public OptimizerWith<LARSOptions> {
 public:
  LARS(std::vector<Tensor> parameters, Options options)
      : LARS({{std::move(parameters), options}}) {}
  explicit LARS(const std::vector<Group>& groups);

 protected:
  void update_group(int group, std::span<const kernels::FusedUpdate> updates) override;
};

}  // namespace tutti::optim
