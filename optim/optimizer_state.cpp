// Saving and loading the state of an optimizer. A saved number is written with 17 digits, so that a
// resumed run has the same bits.
#include "../core/create.h"
#include "../core/excerpt.h"
#include "../core/parse_number.h"
#include "optimizer.h"

#include <map>

namespace tutti::optim {
namespace {

double parse(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) fail<CheckpointError>("optimizer state: '{}' is missing", key);
  const auto value = parse_number<double>(found->second);
  if (!value)
    fail<CheckpointError>("optimizer state: '{}' is '{}', expected a number", key,
                          excerpt(found->second));
  return *value;
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
  std::vector<double> options = read_options(state.metadata);
  std::map<std::string, Tensor> left(state.tensors.begin(), state.tensors.end());
  if (left.size() != state.tensors.size())
    fail<CheckpointError>("optimizer state: the name of a tensor occurs twice");
  // Returns a copy of a tensor; undefined if there is none and none is needed.
  const auto take = [&](const std::string& name, DType dtype, const Shape& shape, bool is_needed) {
    const auto found = left.extract(name);
    if (!found && !is_needed) return Tensor();
    if (!found || !found.mapped().defined())
      fail<CheckpointError>("optimizer state: '{}' is missing", name);
    const Tensor& t = found.mapped();
    if (t.shape() != shape || t.dtype() != dtype)
      fail<CheckpointError>("optimizer state: '{}' is {} {}, expected {} {}", name,
                            to_string(t.dtype()), to_string(t.shape()), to_string(dtype),
                            to_string(shape));
    return t.clone();
  };
  std::vector<Slot> slots = slots_;
  const auto counts = to_vector(take("steps", int64, {std::ssize(slots)}, true));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots[i];
    constexpr double most = 0x1p53;  // Above this number, float64 does not count every step.
    if (!(counts[i] >= 0 && counts[i] <= most))
      fail<CheckpointError>("optimizer state: expected 0 to {} steps of parameter {}, got {}", most,
                            i, counts[i]);
    const int needed = state_count(slot.group, values_of(options, slot.group));
    const Tensor& p = slot.parameter;
    slot.steps = counts[i] > 0 ? full({}, counts[i], {int64, p.device()}) : Tensor();
    slot.states.assign(state_names_.size(), {});
    for (std::size_t k = 0; counts[i] > 0 && k < state_names_.size(); ++k)
      slot.states[k] = take(fmt::format("{}.{}", i, state_names_[k]), accumulate_dtype(p.dtype()),
                            p.shape(), static_cast<int>(k) < needed);
  }
  if (!left.empty())
    fail<CheckpointError>(
        "optimizer state: '{}' belongs to no parameter of this {}, or to one without steps",
        excerpt(left.begin()->first), name_);
  values_ = std::move(options);
  slots_ = std::move(slots);
}

// Returns the values of all options. CheckpointError if the state is of another method or of other
// groups, or if a value is refused.
std::vector<double> Optimizer::read_options(const Metadata& metadata) const {
  const auto method = metadata.find("optimizer");
  if (method == metadata.end() || method->second != name_)
    fail<CheckpointError>("optimizer state: expected that of {}, got that of {}", name_,
                          method == metadata.end() ? "no optimizer" : excerpt(method->second));
  const auto expect_size = [&](const std::string& key, std::int64_t size) {
    if (const double found = parse(metadata, key); found != static_cast<double>(size))
      fail<CheckpointError>("optimizer state: expected '{}' to be {}, got {}", key, size, found);
  };
  expect_size("groups", group_count());
  std::vector<double> values;
  for (int g = 0; g < group_count(); ++g) {
    expect_size(fmt::format("group.{}.parameters", g), group_sizes_[static_cast<std::size_t>(g)]);
    for (const Option& o : table_) {
      const std::string key = fmt::format("group.{}.{}", g, o.name);
      const double value = values.emplace_back(parse(metadata, key));
      if (o.is_flag && value != 0 && value != 1)
        fail<CheckpointError>("optimizer state: '{}' is {}, expected 0 or 1", key, value);
    }
  }
  try {
    check_values(values);
  } catch (const ValueError& error) {
    fail<CheckpointError>("optimizer state: {}", error.what());
  }
  return values;
}

}  // namespace tutti::optim
