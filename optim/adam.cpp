#include "adam.h"

#include "../kernels/kernels.h"

namespace tutti::optim {

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

}  // namespace tutti::optim
