#include "adam.h"

#include "../kernels/kernels.h"

namespace tutti::optim {
namespace {

std::vector<Adam::Group> adam_groups(const std::vector<AdamW::Group>& groups) {
  std::vector<Adam::Group> result;
  for (const auto& [parameters, o] : groups)
    result.push_back({parameters, {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.amsgrad}});
  return result;
}

}  // namespace

Adam::Adam(std::string name, const std::vector<Group>& groups, bool decoupled)
    : OptimizerWith({.name = std::move(name),
                     .options = {{"lr", &Options::lr},
                                 {"beta1", &Options::beta1, 0, 1},
                                 {"beta2", &Options::beta2, 0, 1},
                                 {"eps", &Options::eps},
                                 {"weight_decay", &Options::weight_decay},
                                 {"amsgrad", &Options::amsgrad}},
                     .states = {"first_moment", "second_moment", "largest_second_moment"}},
                    groups),
      decoupled_(decoupled) {}

AdamW::AdamW(const std::vector<Group>& groups) : Adam("AdamW", adam_groups(groups), true) {}

void Adam::update_group(int group, std::span<const kernels::FusedUpdate> updates,
                        const double* scalars) {
  const Options& o = options(group);
  kernels::on(updates.front().parameter.device())
      .optimizer.adam({o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.amsgrad, decoupled_},
                      updates, scalars);
}

}  // namespace tutti::optim
