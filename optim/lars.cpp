#include "lars.h"

#include "../core/create.h"

#include <limits>

namespace tutti::optim {

LARS::LARS(const std::vector<Group>& groups)
    : Optimizer("LARS", {"momentum"}, parameters_of(groups)), options_(options_of(groups)) {
  for (int g = 0; g < group_count(); ++g) check_options(g);
}

std::vector<Optimizer::Option> LARS::options(int group) {
  Options& o = options_[static_cast<std::size_t>(group)];
  return {{"lr", &o.lr, nullptr},
          {"momentum", &o.momentum, nullptr},
          {"weight_decay", &o.weight_decay, nullptr},
          {"trust_coefficient", &o.trust_coefficient, nullptr},
          {"eps", &o.eps, nullptr},
          {"adapt", nullptr, &o.adapt}};
}

void LARS::check_options(int group) const {
  constexpr double unbounded = std::numeric_limits<double>::infinity();
  const Options& o = options_[static_cast<std::size_t>(group)];
  expect("lr", o.lr, 0, unbounded);
  expect("momentum", o.momentum, 0, unbounded);
  expect("weight_decay", o.weight_decay, 0, unbounded);
  expect("trust_coefficient", o.trust_coefficient, 0, unbounded);
  expect("eps", o.eps, 0, unbounded);
}

void LARS::update(int group, std::span<const kernels::ParameterUpdate> updates,
                  kernels::ReplayScalars live) {
  const Options& o = options_[static_cast<std::size_t>(group)];
  const Device device = updates.front().parameter.device();
  std::vector<Tensor> measured;
  for (const auto& u : updates) measured.push_back(u.parameter);
  for (const auto& u : updates) measured.push_back(u.gradient);
  const Tensor squares =
      empty({static_cast<std::int64_t>(measured.size())}, {.dtype = float64, .device = device});
  const auto& steps = kernels::optimizer(device);
  steps.sums_of_squares(measured, squares);
  steps.lars({o.lr, o.momentum, o.weight_decay, o.trust_coefficient, o.eps, o.adapt}, updates,
             squares, live);
}

}  // namespace tutti::optim
