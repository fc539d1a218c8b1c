// Saving and loading the state of an optimizer. A saved number is written with 17 digits, so that a
// resumed run has the same bits.
#include "../core/create.h"
#include "../core/excerpt.h"
#include "optimizer.h"

#include <charconv>

namespace tutti::optim {
namespace {

std::string exact(double value) { return fmt::format("{:.17g}", value); }

double parse(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) fail<CheckpointError>("optimizer state: '{}' is missing", key);
  const std::string& text = found->second;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    fail<CheckpointError>("optimizer state: '{}' is '{}', expected a number", key, excerpt(text));
  return value;
}

const Tensor* find_tensor(const StateDict& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors)
    if (key == name) return &tensor;
  return nullptr;
}

}  // namespace

OptimizerState Optimizer::state_dict() const {
  OptimizerState state;
  std::vector<double> counts;
  for (const Slot& slot : slots_)
    counts.push_back(static_cast<double>(slot.steps) -
                     (slot.skipped.defined() ? slot.skipped.item<double>() : 0));
  state.tensors.emplace_back("steps", tensor(counts, {.dtype = int64}));
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (counts[i] == 0) continue;  // Its states are zero or do not exist yet.
    const auto needed = static_cast<std::size_t>(state_count(slot.group));
    for (std::size_t k = 0; k < state_names_.size(); ++k) {
      Tensor saved;
      if (slot.states[k].defined()) saved = slot.states[k].clone();
      else if (k < needed)  // An option was changed: the next step makes this state.
        saved = zeros(slot.parameter.shape(), {.dtype = accumulate_dtype(slot.parameter.dtype())});
      if (saved.defined())
        state.tensors.emplace_back(fmt::format("{}.{}", i, state_names_[k]), saved);
    }
  }
  state.metadata["optimizer"] = name_;
  state.metadata["groups"] = std::to_string(group_count());
  const OptionValues values = option_values();
  for (std::size_t g = 0; g < values.size(); ++g) {
    state.metadata[fmt::format("group.{}.parameters", g)] = std::to_string(group_sizes_[g]);
    for (std::size_t k = 0; k < values[g].size(); ++k)
      state.metadata[fmt::format("group.{}.{}", g, options_[g][k].name)] = exact(values[g][k]);
  }
  return state;
}

Optimizer::OptionValues Optimizer::option_values() const {
  OptionValues values;
  for (const auto& group : options_) {
    auto& of_group = values.emplace_back();
    for (const Option& o : group)
      of_group.push_back(
          std::visit([](const auto* value) { return static_cast<double>(*value); }, o.value));
  }
  return values;
}

void Optimizer::assign_options(const OptionValues& values) {
  for (std::size_t g = 0; g < options_.size(); ++g)
    for (std::size_t k = 0; k < options_[g].size(); ++k) {
      const double value = values[g][k];
      if (auto* const number = std::get_if<double*>(&options_[g][k].value)) **number = value;
      else *std::get<bool*>(options_[g][k].value) = value != 0;
    }
}

// How many states a parameter needs depends on the options. They are therefore set before the
// states are read, and set back if something does not fit. Afterwards nothing can fail any more.
void Optimizer::load_state_dict(const OptimizerState& state) {
  check_identity(state.metadata);
  const OptionValues options = read_options(state.metadata), before = option_values();
  const std::vector<double> counts = read_counts(state.tensors);
  std::vector<std::vector<Tensor>> states;
  try {
    assign_options(options);
    check_all_options();
    states = read_states(state.tensors, counts);
  } catch (const ValueError& error) {
    assign_options(before);
    fail<CheckpointError>("optimizer state: {}", error.what());
  } catch (...) {
    assign_options(before);
    throw;
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].steps = static_cast<std::int64_t>(counts[i]);
    slots_[i].skipped = {};
    slots_[i].states = std::move(states[i]);
  }
}

void Optimizer::check_identity(const Metadata& metadata) const {
  const auto method = metadata.find("optimizer");
  if (method == metadata.end() || method->second != name_)
    fail<CheckpointError>("optimizer state: expected that of {}, got that of {}", name_,
                          method == metadata.end() ? "no optimizer" : excerpt(method->second));
  if (const double groups = parse(metadata, "groups"); groups != group_count())
    fail<CheckpointError>("optimizer state: expected {} parameter groups, got {}", group_count(),
                          groups);
  for (std::size_t g = 0; g < group_sizes_.size(); ++g)
    if (const double size = parse(metadata, fmt::format("group.{}.parameters", g));
        size != static_cast<double>(group_sizes_[g]))
      fail<CheckpointError>("optimizer state: expected {} parameters in group {}, got {}",
                            group_sizes_[g], g, size);
}

Optimizer::OptionValues Optimizer::read_options(const Metadata& metadata) const {
  OptionValues values;
  for (std::size_t g = 0; g < options_.size(); ++g) {
    auto& of_group = values.emplace_back();
    for (const Option& o : options_[g]) {
      const std::string key = fmt::format("group.{}.{}", g, o.name);
      const double value = of_group.emplace_back(parse(metadata, key));
      if (std::holds_alternative<bool*>(o.value) && value != 0 && value != 1)
        fail<CheckpointError>("optimizer state: '{}' is {}, expected 0 or 1", key, value);
    }
  }
  return values;
}

// Returns how many steps each parameter has made.
std::vector<double> Optimizer::read_counts(const StateDict& tensors) const {
  const Tensor* const steps = find_tensor(tensors, "steps");
  if (!steps || !steps->defined() || steps->dtype() != int64 ||
      steps->shape() != Shape{static_cast<std::int64_t>(slots_.size())})
    fail<CheckpointError>("optimizer state: expected 'steps' as {} int64 numbers", slots_.size());
  const std::vector<double> counts = to_vector(*steps);
  constexpr double most = 0x1p53;  // Above this number, float64 does not count every step.
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (!(counts[i] >= 0 && counts[i] <= most))
      fail<CheckpointError>("optimizer state: expected 0 to {} steps of parameter {}, got {}", most,
                            i, counts[i]);
  return counts;
}

// Returns copies of the states of each parameter. CheckpointError if a tensor is left over.
std::vector<std::vector<Tensor>> Optimizer::read_states(const StateDict& tensors,
                                                        const std::vector<double>& counts) const {
  std::vector<std::vector<Tensor>> states;
  std::size_t used = 1;  // "steps"
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    auto& of_parameter = states.emplace_back();
    for (std::size_t k = 0; k < state_names_.size(); ++k) {
      of_parameter.push_back(read_state(tensors, i, k, counts[i]));
      if (of_parameter.back().defined()) ++used;
    }
  }
  if (used != tensors.size())
    fail<CheckpointError>(
        "optimizer state: {} of its {} tensors belong to no parameter of this {}, or to one "
        "without steps",
        tensors.size() - used, tensors.size(), name_);
  return states;
}

// Returns a copy of one state, in the layout of its parameter; undefined if there is none and none
// is needed.
Tensor Optimizer::read_state(const StateDict& tensors, std::size_t index, std::size_t state,
                             double count) const {
  if (count == 0) return {};
  const Slot& slot = slots_[index];
  const std::string name = fmt::format("{}.{}", index, state_names_[state]);
  const Tensor* const found = find_tensor(tensors, name);
  if (!found && static_cast<int>(state) >= state_count(slot.group)) return {};
  if (!found || !found->defined())
    fail<CheckpointError>("optimizer state: '{}' is missing, after {} steps", name, count);
  const Tensor& p = slot.parameter;
  const DType dtype = accumulate_dtype(p.dtype());
  if (found->shape() != p.shape() || found->dtype() != dtype)
    fail<CheckpointError>("optimizer state: '{}' is {} {}, expected {} {} as its parameter", name,
                          to_string(found->dtype()), to_string(found->shape()), to_string(dtype),
                          to_string(p.shape()));
  const Tensor copy = empty_like(p, dtype);
  copy.copy_(*found);
  return copy;
}

}  // namespace tutti::optim
