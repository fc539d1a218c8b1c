// The constructors and steps of the optimizers: their tables of options, and the kernels that
// update. A kernel gets its numbers in the order of the table. optimizer.cpp does what all of them
// share.
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
  const double* const numbers = options_on(device, group);
  kernels::on(device).optimizer.sgd({.lr = numbers,
                                     .momentum = numbers + 1,
                                     .dampening = numbers + 2,
                                     .weight_decay = numbers + 3,
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
                        {"weight_decay", &Options::weight_decay}},
            .states = {"first_moment", "second_moment"}},
           groups) {}

template <bool decoupled>
void AdamMethod<decoupled>::update_group(int group, std::span<const kernels::FusedUpdate> updates) {
  const Device device = updates.front().parameter.device();
  const double* const numbers = this->options_on(device, group);
  kernels::on(device).optimizer.adam({.lr = numbers,
                                      .beta1 = numbers + 1,
                                      .beta2 = numbers + 2,
                                      .eps = numbers + 3,
                                      .weight_decay = numbers + 4,
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
  const double* const numbers = options_on(device, group);
  std::vector<Tensor> measured;
  for (const auto& u : updates) measured.push_back(u.parameter);
  for (const auto& u : updates) measured.push_back(u.gradient);
  const Tensor squares = empty({std::ssize(measured)}, {.dtype = float64, .device = device});
  const auto& table = kernels::on(device).optimizer;
  table.sums_of_squares(measured, squares);
  table.lars({.lr = numbers,
              .momentum = numbers + 1,
              .weight_decay = numbers + 2,
              .trust_coefficient = numbers + 3,
              .eps = numbers + 4,
              .adapt = options(group).adapt},
             updates, squares);
}

}  // namespace tutti::optim
