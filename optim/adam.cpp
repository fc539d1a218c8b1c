#include "adam.h"

#include <limits>

namespace tutti::optim {
namespace {

std::vector<Adam::Group> as_adam(const std::vector<AdamW::Group>& groups) {
  std::vector<Adam::Group> result;
  for (const auto& [parameters, o] : groups)
    result.push_back({parameters, {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay}});
  return result;
}

}  // namespace

Adam::Adam(std::string name, const std::vector<Group>& groups, bool decoupled)
    : Optimizer(std::move(name), {"first_moment", "second_moment"}, parameters_of(groups)),
      options_(options_of(groups)),
      decoupled_(decoupled) {
  for (int g = 0; g < group_count(); ++g) Adam::check_options(g);
}

AdamW::AdamW(const std::vector<Group>& groups) : Adam("AdamW", as_adam(groups), true) {}

std::vector<Optimizer::Option> Adam::options(int group) {
  Options& o = options_[static_cast<std::size_t>(group)];
  return {{"lr", &o.lr, nullptr},
          {"beta1", &o.beta1, nullptr},
          {"beta2", &o.beta2, nullptr},
          {"eps", &o.eps, nullptr},
          {"weight_decay", &o.weight_decay, nullptr}};
}

void Adam::check_options(int group) const {
  constexpr double unbounded = std::numeric_limits<double>::infinity();
  const Options& o = options_[static_cast<std::size_t>(group)];
  expect("lr", o.lr, 0, unbounded);
  expect("beta1", o.beta1, 0, 1);
  expect("beta2", o.beta2, 0, 1);
  expect("eps", o.eps, 0, unbounded);
  expect("weight_decay", o.weight_decay, 0, unbounded);
}

void Adam::update(int group, std::span<const kernels::ParameterUpdate> updates,
                  kernels::ReplayScalars live) {
  const Options& o = options_[static_cast<std::size_t>(group)];
  kernels::optimizer(updates.front().parameter.device())
      .adam({o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, decoupled_}, updates, live);
}

}  // namespace tutti::optim
