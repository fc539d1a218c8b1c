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
                     .check = check},
                    groups) {}

void SGD::update_group(int group, std::span<const kernels::FusedUpdate> updates,
                       const double* scalars) {
  const Options& o = options(group);
  kernels::on(updates.front().parameter.device())
      .optimizer.sgd({o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov}, updates, scalars);
}

}  // namespace tutti::optim
