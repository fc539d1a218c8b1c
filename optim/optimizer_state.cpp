// Saving and loading the state of an optimizer. A saved number is written with 17 digits, so that a
// resumed run has the same bits.
#include "../core/create.h"
#include "../core/excerpt.h"
#include "optimizer.h"

#include <charconv>

namespace tutti::optim {
namespace {

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
    counts.push_back(slot.steps.defined() ? slot.steps.item<double>() : 0);
  state.tensors.emplace_back("steps", tensor(counts, {.dtype = int64}));
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (counts[i] == 0) continue;  // Its states are zero or do not exist yet.
    const auto needed = static_cast<std::size_t>(states_of(slot.group));
    for (std::size_t k = 0; k < state_names_.size(); ++k) {
      Tensor saved;
      if (slot.states[k].defined()) saved = slot.states[k].clone();
      else if (k < needed)  // An option was changed: the next step makes this state.
        saved = zeros(slot.parameter.shape(), {.dtype = accumulate_dtype(slot.parameter.dtype())});
      if (saved.defined())
        state.tensors.emplace_back(fmt::format("{}.{}", i, state_names_[k]), saved);
    }
  }
  state.metadata = {{"optimizer", name_}, {"groups", std::to_string(group_count())}};
  for (int g = 0; g < group_count(); ++g) {
    state.metadata[fmt::format("group.{}.parameters", g)] =
        std::to_string(group_sizes_[static_cast<std::size_t>(g)]);
    for (std::size_t k = 0; k < table_.size(); ++k)
      state.metadata[fmt::format("group.{}.{}", g, table_[k].name)] =
          fmt::format("{:.17g}", option_values(g)[k]);
  }
  return state;
}

void Optimizer::load_state_dict(const OptimizerState& state) {
  check_identity(state.metadata);
  std::vector<double> options = read_options(state.metadata);
  const std::vector<double> counts = read_counts(state.tensors);
  std::vector<std::vector<Tensor>> states;
  std::size_t used = 1;  // "steps"
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const int group = slots_[i].group, needed = state_count(group, values_of(options, group));
    auto& of_parameter = states.emplace_back(state_names_.size());
    for (std::size_t k = 0; counts[i] > 0 && k < state_names_.size(); ++k) {
      of_parameter[k] = read_state(state.tensors, i, k, static_cast<int>(k) < needed);
      if (of_parameter[k].defined()) ++used;
    }
  }
  if (used != state.tensors.size())
    fail<CheckpointError>(
        "optimizer state: {} of its {} tensors belong to no parameter of this {}, or to one "
        "without steps",
        state.tensors.size() - used, state.tensors.size(), name_);
  values_ = std::move(options);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].steps = counts[i] > 0 ? full({}, counts[i], {int64, slots_[i].parameter.device()})
                                    : Tensor();
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

std::vector<double> Optimizer::read_options(const Metadata& metadata) const {
  std::vector<double> values;
  for (int g = 0; g < group_count(); ++g)
    for (const Option& o : table_) {
      const std::string key = fmt::format("group.{}.{}", g, o.name);
      const double value = values.emplace_back(parse(metadata, key));
      if (o.is_flag && value != 0 && value != 1)
        fail<CheckpointError>("optimizer state: '{}' is {}, expected 0 or 1", key, value);
    }
  try {
    check_values(values);
  } catch (const ValueError& error) {
    fail<CheckpointError>("optimizer state: {}", error.what());
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

// Returns a copy of one state, in the layout of its parameter; undefined if there is none and none
// is needed.
Tensor Optimizer::read_state(const StateDict& tensors, std::size_t index, std::size_t state,
                             bool is_needed) const {
  const std::string name = fmt::format("{}.{}", index, state_names_[state]);
  const Tensor* const found = find_tensor(tensors, name);
  if (!found && !is_needed) return {};
  if (!found || !found->defined())
    fail<CheckpointError>("optimizer state: '{}' is missing, though its parameter has made steps",
                          name);
  const Tensor& p = slots_[index].parameter;
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
