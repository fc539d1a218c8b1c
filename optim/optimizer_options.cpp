// The options of an optimizer by name: their ranges, and the learning rate and momentum, which
// schedules set. A change that is refused leaves all options as they were.
#include "optimizer.h"

#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

namespace tutti::optim {

void Optimizer::set_options(std::vector<std::vector<Option>> options) {
  options_ = std::move(options);
  check_all_options();
}

void Optimizer::check_all_options() const {
  for (int g = 0; g < group_count(); ++g) check_group_options(g);
}

void Optimizer::check_group_options(int group) const {
  for (const Option& o : options_[static_cast<std::size_t>(group)]) check_range(o);
  check_options(group);
}

void Optimizer::check_range(const Option& option) const {
  const auto* const number = std::get_if<double*>(&option.value);
  if (!number) return;
  const double value = **number;
  if (std::isfinite(value) && value >= option.low && value < option.below) return;
  if (option.below == std::numeric_limits<double>::infinity())
    fail<ValueError>("{}: {} must be a finite number of at least {}, got {}", name_, option.name,
                     option.low, value);
  fail<ValueError>("{}: {} must be at least {} and below {}, got {}", name_, option.name,
                   option.low, option.below, value);
}

void Optimizer::expect_group(int group) const {
  if (group < 0 || group >= group_count())
    fail<ValueError>("{}: expected a parameter group from 0 to {}, got {}", name_,
                     group_count() - 1, group);
}

// Returns the address of a number in the options of a group; null if it has no such number.
double* Optimizer::find_number(const char* name, int group) const {
  expect_group(group);
  for (const Option& o : options_[static_cast<std::size_t>(group)])
    if (auto* const* number = std::get_if<double*>(&o.value);
        number && std::string_view(o.name) == name)
      return *number;
  return nullptr;
}

double& Optimizer::number(const char* name, int group) const {
  double* const found = find_number(name, group);
  if (!found)
    fail<ValueError>("{}: expected an option '{}', but its table of options has none", name_, name);
  return *found;
}

void Optimizer::set_number(const char* name, int first_group, int last_group, double value) {
  std::vector<std::pair<double*, double>> before;
  for (int g = first_group; g <= last_group; ++g) {
    double& option = number(name, g);
    before.emplace_back(&option, option);
  }
  try {
    for (int g = first_group; g <= last_group; ++g) {
      number(name, g) = value;
      check_group_options(g);
    }
  } catch (...) {
    for (const auto& [option, old] : before) *option = old;
    throw;
  }
}

const char* Optimizer::momentum_name() const {
  if (find_number("momentum", 0)) return "momentum";
  if (find_number("beta1", 0)) return "beta1";
  fail<ValueError>("{}: expected an option 'momentum' or 'beta1', but its table has neither",
                   name_);
}

void Optimizer::set_learning_rate(double lr) { set_number("lr", 0, group_count() - 1, lr); }
void Optimizer::set_learning_rate(int group, double lr) { set_number("lr", group, group, lr); }
double Optimizer::momentum(int group) const { return number(momentum_name(), group); }
void Optimizer::set_momentum(double momentum) {
  set_number(momentum_name(), 0, group_count() - 1, momentum);
}

}  // namespace tutti::optim
