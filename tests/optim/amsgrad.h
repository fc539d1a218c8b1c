// AMSGrad (Reddi, Kale and Kumar, "On the convergence of Adam and beyond", ICLR 2018) in tensor
// arithmetic, for the tests of optimizers that are written outside the library: it has three states
// and needs the step number.
#pragma once

#include <tutti/autograd/functions.h>
#include <tutti/optim/optimizer.h>

namespace tutti {

struct AmsgradOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool bias_correction = true;
};

class Amsgrad : public optim::OptimizerWith<AmsgradOptions> {
 public:
  Amsgrad(std::vector<Tensor> parameters, Options options)
      : Amsgrad({{std::move(parameters), options}}) {}
  explicit Amsgrad(const std::vector<Group>& groups)
      : OptimizerWith({.name = "Amsgrad",
                       .options = {{"lr", &Options::lr},
                                   {"beta1", &Options::beta1, 0, 1},
                                   {"beta2", &Options::beta2, 0, 1},
                                   {"eps", &Options::eps},
                                   {"bias_correction", &Options::bias_correction}},
                       .states = {"first_moment", "second_moment", "largest"}},
                      groups) {}

 protected:
  void update_one(const optim::ParameterUpdate& u) override {
    const Tensor beta1 = option(&Options::beta1, u), beta2 = option(&Options::beta2, u);
    const Tensor &m = u.states[0], &v = u.states[1], &largest = u.states[2];
    m.copy_(beta1 * m + (1 - beta1) * u.gradient);
    v.copy_(beta2 * v + (1 - beta2) * square(u.gradient));
    largest.copy_(maximum(largest, v));
    const auto correction = [&](const Tensor& beta) {
      return options(u.group).bias_correction ? 1 - exp(u.step * log(beta)) : u.step * 0 + 1.0;
    };
    const Tensor root = sqrt(largest / correction(beta2)) + option(&Options::eps, u);
    u.parameter.add_(option(&Options::lr, u) * (m / correction(beta1) / root), -1);
  }
};

}  // namespace tutti
