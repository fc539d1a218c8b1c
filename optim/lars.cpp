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

void LARS::update_group(int group, std::span<const kernels::FusedUpdate> updates,
                        const double* scalars) {
  const Options& o = options(group);
  const Device device = updates.front().parameter.device();
  std::vector<Tensor> measured;
  for (const auto& u : updates) measured.push_back(u.parameter);
  for (const auto& u : updates) measured.push_back(u.gradient);
  const Tensor squares =
      empty({static_cast<std::int64_t>(measured.size())}, {.dtype = float64, .device = device});
  const auto& table = kernels::on(device).optimizer;
  table.sums_of_squares(measured, squares);
  table.lars({o.lr, o.momentum, o.weight_decay, o.trust_coefficient, o.eps, o.adapt}, updates,
             squares, scalars);
}

}  // namespace tutti::optim
