// Stochastic gradient descent with momentum, dampening, Nesterov's variant and weight decay, as
// PyTorch defines it:
//   g += weight_decay p;  b = momentum b + (1 - dampening) g  (b = g at first);  p -= lr (nesterov
//   ? g + momentum b : b)
// Where momentum is turned on after a parameter's first step, b starts from 0.
#pragma once

#include "optimizer.h"

namespace tutti::optim {

class SGD : public Optimizer {
 public:
  struct Options {
    double lr = 1e-3;
    double momentum = 0;
    double dampening = 0;
    double weight_decay = 0;
    bool nesterov = false;  ///< needs momentum and no dampening
  };
  using Group = ParameterGroup<Options>;

  SGD(std::vector<Tensor> parameters, Options options) : SGD({{std::move(parameters), options}}) {}
  explicit SGD(const std::vector<Group>& groups);

 protected:
  std::vector<Option> options(int group) override;
  void check_options(int group) const override;
  int state_count(int group) const override { return at(group).momentum != 0; }
  void update(int group, std::span<const kernels::ParameterUpdate> updates,
              kernels::ReplayScalars live) override;

 private:
  const Options& at(int group) const { return options_[static_cast<std::size_t>(group)]; }
  std::vector<Options> options_;
};

}  // namespace tutti::optim
