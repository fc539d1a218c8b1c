#include "optimizer.h"

#include "../autograd/grad_mode.h"
#include "../core/create.h"
#include "../core/cuda/graph.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace tutti::optim {
namespace {

bool same_layout(const Tensor& a, const Tensor& b) {
  for (int d = 0; d < a.rank(); ++d)
    if (a.shape()[d] > 1 && a.strides()[d] != b.strides()[d]) return false;
  return true;
}

// `tensor` in the layout and on the device of `parameter`: itself where it is so already, as nearly
// always.
Tensor matched(const Tensor& tensor, const Tensor& parameter) {
  if (tensor.device() == parameter.device() && same_layout(tensor, parameter)) return tensor;
  const Tensor result = empty_like(parameter, tensor.dtype());
  result.copy_(tensor.detach());
  return result;
}

std::string exact(double value) { return fmt::format("{:.17g}", value); }

double parse(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) fail<CheckpointError>("optimizer state: '{}' is missing", key);
  const std::string& text = found->second;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    fail<CheckpointError>("optimizer state: '{}' is '{}', expected a number", key, text);
  return value;
}

const Tensor* find_tensor(const StateDict& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors)
    if (key == name) return &tensor;
  return nullptr;
}

}  // namespace

Optimizer::Optimizer(std::string name, std::vector<std::string> state_names,
                     std::vector<std::vector<Tensor>> groups)
    : name_(std::move(name)), state_names_(std::move(state_names)) {
  std::set<const void*> seen;
  for (const auto& group : groups) {
    for (const Tensor& p : group) {
      const std::size_t index = slots_.size();
      if (!p.defined()) fail<ValueError>("{}: parameter {} is undefined", name_, index);
      if (!is_floating(p.dtype()) || !p.is_leaf() || !p.is_dense())
        fail<ValueError>(
            "{}: parameter {} of shape {} cannot be trained: expected a dense leaf tensor of a "
            "floating dtype",
            name_, index, to_string(p.shape()));
      if (!seen.insert(p.id()).second)
        fail<ValueError>("{}: parameter {} was given twice", name_, index);
      slots_.push_back({.parameter = p, .group = static_cast<int>(group_sizes_.size())});
    }
    group_sizes_.push_back(static_cast<std::int64_t>(group.size()));
  }
  if (slots_.empty()) fail<ValueError>("{}: there is no parameter to train", name_);
}

void Optimizer::zero_grad() {
  for (const Slot& slot : slots_) slot.parameter.set_grad({});
}

std::vector<Tensor> Optimizer::parameters() const {
  std::vector<Tensor> result;
  for (const Slot& slot : slots_) result.push_back(slot.parameter);
  return result;
}

// Gives every parameter its count of skipped steps.
void Optimizer::count_skipped(const Tensor& found_inf) {
  if (found_inf.dtype() != float32 || found_inf.numel() != 1)
    fail<ValueError>("{}: expected found_inf as one float32 element, got {} {}", name_,
                     to_string(found_inf.dtype()), to_string(found_inf.shape()));
  const auto count = static_cast<std::int64_t>(slots_.size());
  Tensor zero;
  for (std::int64_t i = 0; i < count; ++i) {
    Slot& slot = slots_[static_cast<std::size_t>(i)];
    if (slot.parameter.device() != found_inf.device())
      fail<DeviceError>("{}: found_inf is on {}, parameter {} on {}", name_,
                        to_string(found_inf.device()), i, to_string(slot.parameter.device()));
    if (slot.skipped.defined()) continue;
    if (!zero.defined()) zero = zeros({count}, {.device = found_inf.device()});
    slot.skipped = zero.select(0, i);
  }
}

// Before a step of this parameter is captured: whatever it made for the first time would be cleared
// on every replay.
void Optimizer::expect_state(std::size_t index, const Tensor& found_inf) const {
  const Slot& slot = slots_[index];
  bool there = !found_inf.defined() || slot.skipped.defined();
  for (int k = 0; k < state_count(slot.group); ++k) {
    const Tensor& state = slot.state[static_cast<std::size_t>(k)];
    there = there && state.defined() && state.device() == slot.parameter.device() &&
            same_layout(state, slot.parameter);
  }
  if (!there)
    fail<DeviceError>(
        "{}: the step cannot be captured into a graph, since the state of parameter {} of shape {} "
        "is not there yet (or was made for another device or layout): run a step as it is before",
        name_, index, to_string(slot.parameter.shape()));
}

// What the host gives the kernels of a step, for a graph: every replay is the next step of these
// parameters.
kernels::ReplayScalars Optimizer::record(int group, const std::vector<std::size_t>& slots,
                                         const std::vector<kernels::ParameterUpdate>& updates) {
  std::vector<const void*> addresses;
  for (const auto& u : updates) addresses.push_back(u.parameter.raw());
  const auto write = [this, group, slots, updates, addresses](void* to) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Slot& slot = slots_[slots[i]];
      const auto same = [](const Tensor& a, const Tensor& b) {
        return a.defined() && b.defined() && a.is_same(b);
      };
      bool there = slot.parameter.raw() == addresses[i];
      for (const int k : {0, 1}) {
        const Tensor& recorded = k == 0 ? updates[i].first : updates[i].second;
        const bool needed = state_count(group) > k;
        there = there && needed == recorded.defined() &&
                (!needed || same(slot.state[static_cast<std::size_t>(k)], recorded));
      }
      if (updates[i].skipped.defined()) there = there && same(slot.skipped, updates[i].skipped);
      if (!there)
        fail<DeviceError>(
            "{}: parameter {} or its state is not where it was when the graph was captured "
            "(load_state_dict, Module::to, momentum turned on or off): capture the step again",
            name_, slots[i]);
    }
    auto* numbers = static_cast<double*>(to);
    for (const Option& o : options(group)) *numbers++ = o.number ? *o.number : *o.flag ? 1 : 0;
    for (const std::size_t i : slots) *numbers++ = static_cast<double>(++slots_[i].steps);
  };
  const std::size_t bytes = (options(group).size() + slots.size()) * sizeof(double);
  return static_cast<const double*>(
      cuda::refresh_before_replay(updates.front().parameter.device(), bytes, write));
}

void Optimizer::step(const Tensor& found_inf) {
  const NoGrad no_grad;
  std::vector<bool> captured;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Tensor& p = slots_[i].parameter;
    captured.push_back(cuda::is_capturing(p.device()));
    if (captured[i] && p.grad().defined()) expect_state(i, found_inf);
  }
  if (found_inf.defined()) count_skipped(found_inf);
  std::vector<kernels::ParameterUpdate> updates;
  std::vector<std::size_t> which;  // of the slots
  const auto run = [&](int group) {
    if (updates.empty()) return;
    update(group, updates, captured[which.front()] ? record(group, which, updates) : nullptr);
    for (const auto& u : updates) u.parameter.storage()->bump_version();
    updates.clear();
    which.clear();
  };
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (const Tensor gradient = slot.parameter.grad(); gradient.defined()) {
      if (!updates.empty() && updates.front().parameter.device() != slot.parameter.device())
        run(slot.group);
      kernels::ParameterUpdate u;
      u.parameter = slot.parameter;
      u.gradient = matched(gradient, slot.parameter);
      const int states =
          state_count(slot.group);  // may be fewer than before: a momentum that was set to 0
      for (int k = 0; k < states; ++k) {
        Tensor& state = slot.state[static_cast<std::size_t>(k)];
        if (!state.defined()) {
          state = empty_like(slot.parameter, accumulate_dtype(slot.parameter.dtype()));
          state.zero_();
        } else {
          state = matched(state, slot.parameter);
        }
      }
      if (states > 0) u.first = slot.state[0];
      if (states > 1) u.second = slot.state[1];
      u.step = captured[i] ? slot.steps : ++slot.steps;
      u.found_inf = found_inf;
      if (slot.skipped.defined())
        u.skipped = slot.skipped = slot.skipped.to(slot.parameter.device());
      updates.push_back(std::move(u));
      which.push_back(i);
    }
    if (i + 1 == slots_.size() || slots_[i + 1].group != slot.group) run(slot.group);
  }
}

double* Optimizer::find(const char* option, int group) const {
  if (group < 0 || group >= group_count())
    fail<ValueError>("{}: there is no parameter group {}, only {} of them", name_, group,
                     group_count());
  // options() hands out addresses, so it is not const; find() is shared by readers and writers.
  for (const Option& o : const_cast<Optimizer*>(this)->options(group))
    if (o.number && std::string(o.name) == option) return o.number;
  return nullptr;
}

double Optimizer::number(const char* option, int group) const { return *find(option, group); }

void Optimizer::set_number(const char* option, int first, int last, double value) {
  std::vector<double> before;
  for (int g = first; g <= last; ++g) before.push_back(std::exchange(*find(option, g), value));
  try {
    for (int g = first; g <= last; ++g) check_options(g);
  } catch (...) {
    for (int g = first; g <= last; ++g)
      *find(option, g) = before[static_cast<std::size_t>(g - first)];
    throw;
  }
}

const char* Optimizer::momentum_name() const { return find("momentum", 0) ? "momentum" : "beta1"; }

void Optimizer::set_learning_rate(double lr) { set_number("lr", 0, group_count() - 1, lr); }
void Optimizer::set_learning_rate(int group, double lr) { set_number("lr", group, group, lr); }
double Optimizer::momentum(int group) const { return number(momentum_name(), group); }
void Optimizer::set_momentum(double momentum) {
  set_number(momentum_name(), 0, group_count() - 1, momentum);
}

OptimizerState Optimizer::state_dict() const {
  OptimizerState state;
  std::vector<double> steps;
  for (const Slot& slot : slots_)
    steps.push_back(static_cast<double>(slot.steps) -
                    (slot.skipped.defined() ? slot.skipped.item<double>() : 0));
  state.tensors.emplace_back("steps", tensor(steps, {.dtype = int64}));
  for (std::size_t i = 0; i < slots_.size(); ++i)
    for (std::size_t k = 0; k < state_names_.size(); ++k) {
      const Slot& slot = slots_[i];
      Tensor saved;
      if (steps[i] == 0) continue;  // so has no state yet, or zeros, if what it did was skipped
      if (slot.state[k].defined()) saved = slot.state[k].clone();
      else if (static_cast<int>(k) < state_count(slot.group))  // needed from the next step on
        saved = zeros(slot.parameter.shape(), {.dtype = accumulate_dtype(slot.parameter.dtype())});
      if (saved.defined())
        state.tensors.emplace_back(fmt::format("{}.{}", i, state_names_[k]), saved);
    }
  state.metadata["optimizer"] = name_;
  state.metadata["groups"] = std::to_string(group_count());
  for (int g = 0; g < group_count(); ++g) {
    state.metadata[fmt::format("group.{}.parameters", g)] =
        std::to_string(group_sizes_[static_cast<std::size_t>(g)]);
    for (const Option& o : const_cast<Optimizer*>(this)->options(g))
      state.metadata[fmt::format("group.{}.{}", g, o.name)] = o.number  ? exact(*o.number)
                                                              : *o.flag ? "1"
                                                                        : "0";
  }
  return state;
}

void Optimizer::load_state_dict(const OptimizerState& state) {
  // Everything is read and checked first; then nothing can fail any more.
  const auto method = state.metadata.find("optimizer");
  if (method == state.metadata.end() || method->second != name_)
    fail<CheckpointError>("optimizer state: expected that of {}, got that of {}", name_,
                          method == state.metadata.end() ? "no optimizer" : method->second);
  if (const double groups = parse(state.metadata, "groups"); groups != group_count())
    fail<CheckpointError>("optimizer state: expected {} parameter groups, got {}", group_count(),
                          groups);
  for (int g = 0; g < group_count(); ++g)
    if (const double size = parse(state.metadata, fmt::format("group.{}.parameters", g));
        size != static_cast<double>(group_sizes_[static_cast<std::size_t>(g)]))
      fail<CheckpointError>("optimizer state: group {} has {} parameters, expected {}", g, size,
                            group_sizes_[static_cast<std::size_t>(g)]);
  const Tensor* const steps = find_tensor(state.tensors, "steps");
  if (!steps || steps->dtype() != int64 ||
      steps->shape() != Shape{static_cast<std::int64_t>(slots_.size())})
    fail<CheckpointError>("optimizer state: expected 'steps' as {} int64 numbers", slots_.size());
  std::vector<std::vector<double>> before(static_cast<std::size_t>(group_count()));
  const auto assign = [](const Option& o, double value) {
    o.number ? void(*o.number = value) : void(*o.flag = value != 0);
  };
  std::vector<std::vector<double>> after = before;
  for (int g = 0; g < group_count(); ++g)
    for (const Option& o : options(g)) {
      before[static_cast<std::size_t>(g)].push_back(o.number ? *o.number : *o.flag);
      after[static_cast<std::size_t>(g)].push_back(
          parse(state.metadata, fmt::format("group.{}.{}", g, o.name)));
    }
  const auto set_all = [&](const std::vector<std::vector<double>>& values) {
    for (int g = 0; g < group_count(); ++g) {
      std::size_t k = 0;
      for (const Option& o : options(g)) assign(o, values[static_cast<std::size_t>(g)][k++]);
    }
  };
  // How many state tensors a parameter needs depends on the options: they are tried on, and set for
  // good at the end.
  std::vector<int> needed;
  set_all(after);
  try {
    for (int g = 0; g < group_count(); ++g) {
      check_options(g);
      needed.push_back(state_count(g));
    }
  } catch (const ValueError& error) {
    set_all(before);
    fail<CheckpointError>("optimizer state: {}", error.what());
  }
  set_all(before);
  const std::vector<double> counts = to_vector(*steps);
  std::vector<std::array<Tensor, 2>> loaded(slots_.size());
  std::size_t used = 1;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    constexpr double most = 0x1p53;  // above, float64 does not count every step
    if (!(counts[i] >= 0 && counts[i] <= most))
      fail<CheckpointError>("optimizer state: parameter {} has made {} steps, expected 0 to {}", i,
                            counts[i], most);
    if (counts[i] == 0) continue;  // so has no state yet
    for (std::size_t k = 0; k < state_names_.size(); ++k) {
      const std::string name = fmt::format("{}.{}", i, state_names_[k]);
      const Tensor* const found = find_tensor(state.tensors, name);
      if (!found && static_cast<int>(k) >= needed[static_cast<std::size_t>(slots_[i].group)])
        continue;
      if (!found)
        fail<CheckpointError>("optimizer state: '{}' is missing, after {} steps", name, counts[i]);
      const Tensor& p = slots_[i].parameter;
      const DType dtype = accumulate_dtype(p.dtype());
      if (found->shape() != p.shape() || found->dtype() != dtype)
        fail<CheckpointError>("optimizer state: '{}' is {} {}, expected {} {} as its parameter",
                              name, to_string(found->dtype()), to_string(found->shape()),
                              to_string(dtype), to_string(p.shape()));
      loaded[i][k] = empty_like(p, dtype);
      loaded[i][k].copy_(*found);
      ++used;
    }
  }
  if (used != state.tensors.size())
    fail<CheckpointError>(
        "optimizer state: {} of its {} tensors belong to no parameter of this {}, or to one "
        "without steps",
        state.tensors.size() - used, state.tensors.size(), name_);
  set_all(after);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].steps = static_cast<std::int64_t>(counts[i]);
    slots_[i].skipped = {};
    slots_[i].state = std::move(loaded[i]);
  }
}

void Optimizer::expect(const char* option, double value, double low, double high) const {
  if (std::isfinite(value) && value >= low && value < high) return;
  if (high == std::numeric_limits<double>::infinity())
    fail<ValueError>("{}: {} must be a finite number of at least {}, got {}", name_, option, low,
                     value);
  fail<ValueError>("{}: {} must be at least {} and below {}, got {}", name_, option, low, high,
                   value);
}

}  // namespace tutti::optim
