#include "lars.h"

#include "../core/create.h"
#include "../kernels/kernels.h"

namespace tutti::optim {

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
