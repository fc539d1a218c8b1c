// LARS, layer-wise adaptive rate scaling (You, Gitman and Ginsburg, "Large batch training of
// convolutional networks", arXiv 1708.03888): momentum SGD in which every parameter tensor has a
// local rate
//   local = trust_coefficient |p| / (|g| + weight_decay |p| + eps);   b = momentum b + lr local (g
//   + weight_decay p);   p -= b
// The local rate is 1 where |p| or |g| is 0, and in groups with adapt = false (usual for biases and
// normalisation).
#pragma once

#include "optimizer.h"

namespace tutti::optim {

class LARS : public Optimizer {
 public:
  struct Options {
    double lr = 1e-1;
    double momentum = 0.9;
    double weight_decay = 0;
    double trust_coefficient = 1e-3;
    double eps = 0;
    bool adapt = true;
  };
  using Group = ParameterGroup<Options>;

  LARS(std::vector<Tensor> parameters, Options options)
      : LARS({{std::move(parameters), options}}) {}
  explicit LARS(const std::vector<Group>& groups);

 protected:
  std::vector<Option> options(int group) override;
  void check_options(int group) const override;
  int state_count(int) const override { return 1; }
  void update(int group, std::span<const kernels::ParameterUpdate> updates,
              kernels::ReplayScalars live) override;

 private:
  std::vector<Options> options_;
};

}  // namespace tutti::optim
