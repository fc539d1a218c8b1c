// The constructors and steps of the optimizers: their tables of options, and the kernels that
// update. optimizer.cpp does what all of them share.
#include "../core/create.h"
#include "../kernels/kernels.h"
#include "adam.h"
#include "lars.h"
#include "sgd.h"

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

template <bool decoupled>
AdamMethod<decoupled>::AdamMethod(const std::vector<Group>& groups)
    : Base({.name = decoupled ? "AdamW" : "Adam",
            .options = {{"lr", &Options::lr},
                        {"beta1", &Options::beta1, 0, 1},
                        {"beta2", &Options::beta2, 0, 1},
                        {"eps", &Options::eps},
                        {"weight_decay", &Options::weight_decay},
                        {"amsgrad", &Options::amsgrad}},
            .states = {"first_moment", "second_moment", "largest_second_moment"},
            .state_count = [](const Options& o) { return o.amsgrad ? 3 : 2; }},
           groups) {}

template <bool decoupled>
void AdamMethod<decoupled>::update_group(int group, std::span<const kernels::FusedUpdate> updates) {
  const Device device = updates.front().parameter.device();
  const auto number = [&](const char* name) { return this->option_address(name, group, device); };
  kernels::on(device).optimizer.adam({.lr = number("lr"),
                                      .beta1 = number("beta1"),
                                      .beta2 = number("beta2"),
                                      .eps = number("eps"),
                                      .weight_decay = number("weight_decay"),
                                      .decoupled = decoupled},
                                     updates);
}

template class AdamMethod<false>;
template class AdamMethod<true>;

LARS::LARS(const std::vector<Group>& groups)
    : OptimizerWith({.name = "LARS",
                     .options = {{"lr", &Options::lr},
                                 {"momentum", &Options::momentum},
                                 {"weight_decay", &Options::weight_decay},
                                 {"trust_coefficient", &Options::trust_coefficient},
                                 {"eps", &Options::eps},
                                 {"adapt", &Options::adapt}},
                     .states = {"momentum"}},
                    groups) {}

void LARS::update_group(int group, std::span<const kernels::FusedUpdate> updates) {
  const Device device = updates.front().parameter.device();
  const auto number = [&](const char* name) { return option_address(name, group, device); };
  std::vector<Tensor> measured;
  for (const auto& u : updates) measured.push_back(u.parameter);
  for (const auto& u : updates) measured.push_back(u.gradient);
  const Tensor squares = empty({std::ssize(measured)}, {.dtype = float64, .device = device});
  const auto& table = kernels::on(device).optimizer;
  table.sums_of_squares(measured, squares);
  table.lars({.lr = number("lr"),
              .momentum = number("momentum"),
              .weight_decay = number("weight_decay"),
              .trust_coefficient = number("trust_coefficient"),
              .eps = number("eps"),
              .adapt = options(group).adapt},
             updates, squares);
}

}  // namespace tutti::optim
