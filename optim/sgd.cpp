#include "sgd.h"

#include <limits>

namespace tutti::optim {

SGD::SGD(const std::vector<Group>& groups)
    : Optimizer("SGD", {"momentum"}, parameters_of(groups)), options_(options_of(groups)) {
  for (int g = 0; g < group_count(); ++g) check_options(g);
}

std::vector<Optimizer::Option> SGD::options(int group) {
  Options& o = options_[static_cast<std::size_t>(group)];
  return {{"lr", &o.lr, nullptr},
          {"momentum", &o.momentum, nullptr},
          {"dampening", &o.dampening, nullptr},
          {"weight_decay", &o.weight_decay, nullptr},
          {"nesterov", nullptr, &o.nesterov}};
}

void SGD::check_options(int group) const {
  constexpr double unbounded = std::numeric_limits<double>::infinity();
  const Options& o = at(group);
  expect("lr", o.lr, 0, unbounded);
  expect("momentum", o.momentum, 0, unbounded);
  expect("dampening", o.dampening, 0, unbounded);
  expect("weight_decay", o.weight_decay, 0, unbounded);
  if (o.nesterov && (o.momentum == 0 || o.dampening != 0))
    fail<ValueError>("SGD: nesterov needs a momentum above 0 and a dampening of 0, got {} and {}",
                     o.momentum, o.dampening);
}

void SGD::update(int group, std::span<const kernels::ParameterUpdate> updates,
                 kernels::ReplayScalars live) {
  const Options& o = at(group);
  kernels::optimizer(updates.front().parameter.device())
      .sgd({o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov}, updates, live);
}

}  // namespace tutti::optim
