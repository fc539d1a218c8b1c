// The options of an optimizer: their values by name, where a change that is refused leaves all of
// them as they were, and their copies in device memory, from which kernels read them.
#include "optimizer.h"

#include "../core/create.h"
#include "../core/cuda/graph.h"
#include "../core/memory.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace tutti::optim {

void Optimizer::set_options(std::vector<Option> table, std::vector<double> values) {
  table_ = std::move(table);
  assign(std::move(values));
}

void Optimizer::assign(std::vector<double> values) {
  check_values(values);
  values_ = std::move(values);
}

void Optimizer::check_values(const std::vector<double>& values) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Option& o = table_[i % table_.size()];
    if (o.is_flag || (std::isfinite(values[i]) && values[i] >= o.min && values[i] < o.limit))
      continue;
    if (o.limit == std::numeric_limits<double>::infinity())
      fail<ValueError>("{}: {} must be a finite number of at least {}, got {}", name_, o.name,
                       o.min, values[i]);
    fail<ValueError>("{}: {} must be at least {} and below {}, got {}", name_, o.name, o.min,
                     o.limit, values[i]);
  }
  for (int g = 0; g < group_count(); ++g) check_options(g, values_of(values, g));
}

std::span<const double> Optimizer::values_of(const std::vector<double>& values, int group) const {
  return std::span(values).subspan(static_cast<std::size_t>(group) * table_.size(), table_.size());
}

std::span<const double> Optimizer::option_values(int group) const {
  if (group < 0 || group >= group_count())
    fail<ValueError>("{}: expected a parameter group from 0 to {}, got {}", name_,
                     group_count() - 1, group);
  return values_of(values_, group);
}

bool Optimizer::has_option(std::string_view name) const {
  return std::ranges::any_of(table_, [&](const Option& o) { return !o.is_flag && o.name == name; });
}

// Returns the position of a number among the values of all groups.
std::size_t Optimizer::option_index(std::string_view name, int group) const {
  const std::span<const double> values = option_values(group);
  if (!has_option(name))
    fail<ValueError>("{}: expected an option '{}', but its table of options has none", name_, name);
  const auto found = std::ranges::find(table_, name, &Option::name);
  return static_cast<std::size_t>(values.data() - values_.data() + (found - table_.begin()));
}

const char* Optimizer::momentum_name() const {
  for (const char* const name : {"momentum", "beta1"})
    if (has_option(name)) return name;
  fail<ValueError>("{}: expected an option 'momentum' or 'beta1', but its table has neither",
                   name_);
}

void Optimizer::set_rates(std::span<const double> rates, std::optional<double> momentum) {
  std::vector<double> values = values_;
  for (int g = 0; g < group_count(); ++g) {
    if (!rates.empty()) values[option_index("lr", g)] = rates[static_cast<std::size_t>(g)];
    if (momentum) values[option_index(momentum_name(), g)] = *momentum;
  }
  assign(std::move(values));
}

double Optimizer::learning_rate(int group) const { return values_[option_index("lr", group)]; }
void Optimizer::set_learning_rate(double lr) {
  set_rates(std::vector(group_sizes_.size(), lr), {});
}
void Optimizer::set_learning_rate(int group, double lr) {
  std::vector<double> values = values_;
  values[option_index("lr", group)] = lr;
  assign(std::move(values));
}
double Optimizer::momentum(int group) const {
  return values_[option_index(momentum_name(), group)];
}

// ---- Options in device memory, from which kernels read them

Tensor Optimizer::option(const char* name, const ParameterUpdate& update) {
  return device_option(name, update.group, update.parameter.dtype(), update.parameter.device());
}

const double* Optimizer::option_address(const char* name, int group, Device device) {
  return device_option(name, group, float64, device).data<double>();
}

Tensor Optimizer::device_option(const char* name, int group, DType dtype, Device device) {
  const std::size_t index = option_index(name, group);
  auto found = std::ranges::find_if(device_options_, [&](const DeviceOptions& o) {
    return o.tensor.device() == device && o.tensor.dtype() == dtype;
  });
  const bool captured = cuda::is_capturing(device);
  if (found == device_options_.end() && captured)
    fail<DeviceError>(
        "{}: the step cannot be captured into a graph, since no step has read the option '{}' on "
        "{} yet; run a step without a graph before",
        name_, name, to_string(device));
  if (found == device_options_.end())
    found = device_options_.insert(found, {.tensor = empty({std::ssize(values_)}, {dtype, device}),
                                           .written = {},
                                           .is_read = std::vector<bool>(values_.size())});
  if (!captured) write(*found);
  found->is_read[index] = true;
  return found->tensor.select(0, static_cast<std::int64_t>(index));
}

// Brings the values on the device up to date, by one copy for the options of all groups.
void Optimizer::write(DeviceOptions& options) const {
  if (options.written == values_) return;
  const Tensor values = tensor(values_, {.dtype = options.tensor.dtype()});
  copy_bytes(options.tensor.raw(), options.tensor.device(), values.raw(), values.device(),
             values_.size() * size_of(values.dtype()));
  options.written = values_;
}

}  // namespace tutti::optim
