// The options of an optimizer: their values, where a change that is refused leaves all of them as
// they were, and their copies in device memory, from which kernels read them.
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
  rate_ = find_number("lr");
  momentum_ = find_number("momentum");
  if (!momentum_) momentum_ = find_number("beta1");
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

std::optional<std::size_t> Optimizer::find_number(std::string_view name) const {
  for (std::size_t i = 0; i < table_.size(); ++i)
    if (!table_[i].is_flag && table_[i].name == name) return i;
  return {};
}

// Returns where a number of a group stands among the values of all groups.
std::size_t Optimizer::index_of(std::optional<std::size_t> number, int group) const {
  const std::span<const double> values = option_values(group);
  if (!number)
    fail<ValueError>("{}: expected an option 'lr', and 'momentum' or 'beta1', in its table", name_);
  return static_cast<std::size_t>(values.data() - values_.data()) + *number;
}

void Optimizer::set_rates(std::span<const double> rates, std::optional<double> momentum) {
  std::vector<double> values = values_;
  for (int g = 0; g < group_count(); ++g) {
    if (!rates.empty()) values[index_of(rate_, g)] = rates[static_cast<std::size_t>(g)];
    if (momentum) values[index_of(momentum_, g)] = *momentum;
  }
  assign(std::move(values));
}

double Optimizer::learning_rate(int group) const { return values_[index_of(rate_, group)]; }
void Optimizer::set_learning_rate(double lr) {
  set_rates(std::vector(group_sizes_.size(), lr), {});
}
void Optimizer::set_learning_rate(int group, double lr) {
  std::vector<double> values = values_;
  values[index_of(rate_, group)] = lr;
  assign(std::move(values));
}
double Optimizer::momentum(int group) const { return values_[index_of(momentum_, group)]; }

// ---- Options in device memory, from which kernels read them

Tensor Optimizer::option(std::size_t index, const ParameterUpdate& update) {
  DeviceOptions& options = options_of(update.parameter.dtype(), update.parameter.device());
  index += static_cast<std::size_t>(update.group) * table_.size();
  options.is_read[index] = true;
  return options.tensor.select(0, static_cast<std::int64_t>(index));
}

const double* Optimizer::options_on(Device device, int group) {
  const std::size_t first = static_cast<std::size_t>(group) * table_.size();
  if (device.is_cpu()) return values_.data() + first;
  DeviceOptions& options = options_of(float64, device);
  for (std::size_t i = 0; i < table_.size(); ++i) options.is_read[first + i] = !table_[i].is_flag;
  return options.tensor.data<double>() + first;
}

// Returns the options in one dtype on one device, up to date unless a graph captures: its replays
// bring them up to date.
Optimizer::DeviceOptions& Optimizer::options_of(DType dtype, Device device) {
  auto found = std::ranges::find_if(device_options_, [&](const DeviceOptions& o) {
    return o.tensor.device() == device && o.tensor.dtype() == dtype;
  });
  const bool captured = cuda::is_capturing(device);
  if (found == device_options_.end() && captured)
    fail<DeviceError>(
        "{}: the step cannot be captured into a graph, since no step has read the options on {} "
        "yet; run a step without a graph before",
        name_, to_string(device));
  if (found == device_options_.end())
    found = device_options_.insert(found, {.tensor = empty({std::ssize(values_)}, {dtype, device}),
                                           .written = {},
                                           .is_read = std::vector<bool>(values_.size())});
  if (!captured) write(*found);
  return *found;
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
