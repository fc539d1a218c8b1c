#include "sgd.h"

#include "../kernels/kernels.h"

namespace tutti::optim {
namespace {

void check(const SGDOptions& o) {
  if (o.nesterov && (o.momentum == 0 || o.dampening != 0))
    fail<ValueError>("SGD: nesterov needs a momentum above 0 and a dampening of 0, got {} and {}",
                     o.momentum, o.dampening);
}

}  // namespace

SGD::SGD(const std::vector<Group>& groups)
    : OptimizerWith({.name = "SGD",
                     .options = {{"lr", &Options::lr},
                                 {"momentum", &Options::momentum},
                                 {"dampening", &Options::dampening},
                                 {"weight_decay", &Options::weight_decay},
                                 {"nesterov", &Options::nesterov}},
                     .states = {"momentum"},
                     .check = check,
                     .state_count = [](const Options& o) { return o.momentum != 0 ? 1 : 0; }},
                    groups) {}

void SGD::update_group(int group, std::span<const kernels::FusedUpdate> updates) {
  const Device device = updates.front().parameter.device();
  const auto number = [&](const char* name) { return option_address(name, group, device); };
  kernels::on(device).optimizer.sgd({.lr = number("lr"),
                                     .momentum = number("momentum"),
                                     .dampening = number("dampening"),
                                     .weight_decay = number("weight_decay"),
                                     .nesterov = options(group).nesterov},
                                    updates);
}

}  // namespace tutti::optim
