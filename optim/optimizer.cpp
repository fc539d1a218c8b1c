// The constructor and step() of an optimizer. The options by name are in optimizer_options.cpp, the
// saved state in optimizer_state.cpp.
#include "optimizer.h"

#include "../autograd/functions.h"
#include "../autograd/grad_mode.h"
#include "../autograd/node.h"
#include "../core/create.h"
#include "../core/cuda/graph.h"
#include "../kernels/optimizer.h"
#include "../kernels/rounded_weights.h"

#include <set>
#include <utility>

namespace tutti::optim {
namespace {

bool same_layout(const Tensor& a, const Tensor& b) {
  for (int d = 0; d < a.rank(); ++d)
    if (a.shape()[d] > 1 && a.strides()[d] != b.strides()[d]) return false;
  return true;
}

// Returns `tensor` in the layout and on the device of `parameter`: itself in nearly all cases.
Tensor matched(const Tensor& tensor, const Tensor& parameter) {
  if (tensor.device() == parameter.device() && same_layout(tensor, parameter)) return tensor;
  const Tensor result = empty_like(parameter, tensor.dtype());
  result.copy_(tensor.detach());
  return result;
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
      slots_.push_back({.parameter = p,
                        .group = static_cast<int>(group_sizes_.size()),
                        .states = std::vector<Tensor>(state_names_.size())});
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

int Optimizer::state_count(int /*group*/) const { return static_cast<int>(state_names_.size()); }

// ---- A step. Everything is checked before anything changes.

void Optimizer::step(const Tensor& found_inf) {
  const NoGrad no_grad;
  const Autocast off(float32);
  const std::vector<std::size_t> due = slots_with_gradient();
  for (const std::size_t i : due) {
    check_parameter(i);
    check_states(i);
    check_capture(i, found_inf);
  }
  if (found_inf.defined()) {
    check_found_inf(found_inf);
    make_skip_counts(found_inf.device());
  }
  for (const Slot& slot : slots_)
    autograd::meta_of(slot.parameter).optimizer_steps.fetch_add(1, std::memory_order_relaxed);
  // Neighbours in the same group and on the same device are updated together.
  for (std::size_t first = 0, last = 0; first < due.size(); first = last) {
    const Slot& slot = slots_[due[first]];
    const auto joins = [&](const Slot& next) {
      return next.group == slot.group && next.parameter.device() == slot.parameter.device();
    };
    while (last < due.size() && joins(slots_[due[last]])) ++last;
    update_slots(Slots(due).subspan(first, last - first), found_inf);
  }
}

std::vector<std::size_t> Optimizer::slots_with_gradient() const {
  std::vector<std::size_t> result;
  result.reserve(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].parameter.grad().defined()) result.push_back(i);
  return result;
}

void Optimizer::check_parameter(std::size_t index) const {
  const Tensor &p = slots_[index].parameter, g = p.grad();
  if (!is_floating(p.dtype()))
    fail<DTypeError>(
        "{}: parameter {}: expected a floating dtype, got {}; convert it with .to(dtype)", name_,
        index, to_string(p.dtype()));
  if (!p.is_dense())
    fail<ShapeError>(
        "{}: parameter {} of shape {}: expected elements that are dense in memory, got strides {}; "
        "pass set_data() a contiguous() tensor",
        name_, index, to_string(p.shape()), to_string(p.strides()));
  if (!(g.shape() == p.shape()))
    fail<ShapeError>(
        "{}: gradient of parameter {}: expected the parameter's shape {}, got {}; clear it with "
        "zero_grad() and run backward again",
        name_, index, to_string(p.shape()), to_string(g.shape()));
  if (g.dtype() != p.dtype())
    fail<DTypeError>(
        "{}: gradient of parameter {}: expected the parameter's dtype {}, got {}; clear it with "
        "zero_grad() and run backward again",
        name_, index, to_string(p.dtype()), to_string(g.dtype()));
  if (g.device() != p.device())
    fail<DeviceError>(
        "{}: gradient of parameter {}: expected it on {} like the parameter, got it on {}; clear "
        "it with zero_grad() and run backward again",
        name_, index, to_string(p.device()), to_string(g.device()));
}

// A state may be on another device or in another layout: it follows its parameter.
void Optimizer::check_states(std::size_t index) const {
  const Slot& slot = slots_[index];
  const Tensor& p = slot.parameter;
  const auto needed = static_cast<std::size_t>(state_count(slot.group));
  for (std::size_t k = 0; k < needed; ++k) {
    const Tensor& state = slot.states[k];
    if (!state.defined()) continue;
    if (!(state.shape() == p.shape()))
      fail<ShapeError>(
          "{}: state '{}' of parameter {}: expected the parameter's shape {}, got {}; make a new "
          "optimizer after changing the shape of a parameter",
          name_, state_names_[k], index, to_string(p.shape()), to_string(state.shape()));
    if (const DType dtype = accumulate_dtype(p.dtype()); state.dtype() != dtype)
      fail<DTypeError>(
          "{}: state '{}' of parameter {}: expected {} for a parameter in {}, got {}; make a new "
          "optimizer after changing the dtype of a parameter",
          name_, state_names_[k], index, to_string(dtype), to_string(p.dtype()),
          to_string(state.dtype()));
  }
}

void Optimizer::check_found_inf(const Tensor& found_inf) const {
  if (found_inf.dtype() != float32 || found_inf.numel() != 1)
    fail<ValueError>("{}: expected found_inf as one float32 element, got {} {}", name_,
                     to_string(found_inf.dtype()), to_string(found_inf.shape()));
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].parameter.device() != found_inf.device())
      fail<DeviceError>(
          "{}: found_inf is on {}, parameter {} on {}; move one of them with .to(device)", name_,
          to_string(found_inf.device()), i, to_string(slots_[i].parameter.device()));
}

// While a graph is captured, memory that is made for the first time would be cleared on every
// replay, and numbers of the host would be frozen.
void Optimizer::check_capture(std::size_t index, const Tensor& found_inf) const {
  const Slot& slot = slots_[index];
  if (!cuda::is_capturing(slot.parameter.device())) return;
  if (!is_capturable())
    fail<DeviceError>(
        "{}: the step cannot be captured into a graph, since its update_one() computes with "
        "options that the graph would freeze; leave step() out of the graph and call it after "
        "each replay()",
        name_);
  bool exists = !found_inf.defined() || slot.skipped.defined();
  for (int k = 0; k < state_count(slot.group); ++k) {
    const Tensor& state = slot.states[static_cast<std::size_t>(k)];
    exists = exists && state.defined() && state.device() == slot.parameter.device() &&
             same_layout(state, slot.parameter);
  }
  if (!exists)
    fail<DeviceError>(
        "{}: the step cannot be captured into a graph, since parameter {} of shape {} has no state "
        "yet (or a state for another device or layout); run a step without a graph before",
        name_, index, to_string(slot.parameter.shape()));
}

// Gives every parameter its count of skipped steps.
void Optimizer::make_skip_counts(Device device) {
  const auto count = static_cast<std::int64_t>(slots_.size());
  Tensor zero;
  for (std::int64_t i = 0; i < count; ++i) {
    Slot& slot = slots_[static_cast<std::size_t>(i)];
    if (slot.skipped.defined()) continue;
    if (!zero.defined()) zero = zeros({count}, {.device = device});
    slot.skipped = zero.select(0, i);
  }
}

// Updates parameters of one group that are on one device.
void Optimizer::update_slots(Slots slots, const Tensor& found_inf) {
  const Slot& first = slots_[slots.front()];
  const bool captured = cuda::is_capturing(first.parameter.device());
  std::vector<kernels::FusedUpdate> updates;
  updates.reserve(slots.size());
  for (const std::size_t i : slots) updates.push_back(prepare(slots_[i], found_inf));
  update_group(first.group, updates, captured ? replay_scalars(slots, updates) : nullptr);
  for (const auto& u : updates) kernels::count_update(u.parameter, u.rounded);
  if (captured) return;  // Each replay counts.
  for (const std::size_t i : slots) ++slots_[i].steps;
}

// Makes the states that are missing, and brings tensors into the parameter's layout.
kernels::FusedUpdate Optimizer::prepare(Slot& slot, const Tensor& found_inf) const {
  kernels::FusedUpdate u{.parameter = slot.parameter,
                         .gradient = matched(slot.parameter.grad(), slot.parameter),
                         .step = slot.steps + 1,
                         .found_inf = found_inf};
  const auto needed = static_cast<std::size_t>(state_count(slot.group));
  u.states.reserve(needed);
  for (std::size_t k = 0; k < needed; ++k) {
    Tensor& state = slot.states[k];
    if (state.defined()) {
      state = matched(state, slot.parameter);
    } else {
      state = empty_like(slot.parameter, accumulate_dtype(slot.parameter.dtype()));
      state.zero_();
    }
    u.states.push_back(state);
  }
  if (slot.skipped.defined()) u.skipped = slot.skipped = slot.skipped.to(slot.parameter.device());
  u.rounded = kernels::copy_to_update(slot.parameter);
  return u;
}

// ---- A captured step

// Returns device memory that every replay of the graph fills with the options and step numbers of
// that moment (kernels::ReplayScalars). Every replay counts as a step of these parameters.
const double* Optimizer::replay_scalars(Slots slots,
                                        std::span<const kernels::FusedUpdate> updates) {
  std::vector<const void*> addresses;
  for (const auto& u : updates) addresses.push_back(u.parameter.raw());
  const int group = slots_[slots.front()].group;
  const std::vector<Option>& options = options_[static_cast<std::size_t>(group)];
  const auto write = [this, addresses, &options, indices = std::vector(slots.begin(), slots.end()),
                      captured = std::vector(updates.begin(), updates.end())](void* to) {
    for (std::size_t i = 0; i < indices.size(); ++i)
      check_not_moved(indices[i], captured[i], addresses[i]);
    for (const auto& u : captured) {
      if (u.rounded.defined()) kernels::copy_to_update(u.parameter);  // makes it current
      kernels::count_update(u.parameter, u.rounded);
    }
    auto* numbers = static_cast<double*>(to);
    for (const Option& o : options)
      *numbers++ =
          std::visit([](const auto* value) { return static_cast<double>(*value); }, o.value);
    for (const std::size_t i : indices) *numbers++ = static_cast<double>(++slots_[i].steps);
  };
  const std::size_t bytes = (options.size() + slots.size()) * sizeof(double);
  return static_cast<const double*>(
      cuda::refresh_before_replay(updates.front().parameter.device(), bytes, write));
}

void Optimizer::check_not_moved(std::size_t index, const kernels::FusedUpdate& captured,
                                const void* address) const {
  const Slot& slot = slots_[index];
  bool same = slot.parameter.raw() == address &&
              static_cast<std::size_t>(state_count(slot.group)) == captured.states.size();
  for (std::size_t k = 0; same && k < captured.states.size(); ++k)
    same = slot.states[k].defined() && slot.states[k].is_same(captured.states[k]);
  if (captured.skipped.defined())
    same = same && slot.skipped.defined() && slot.skipped.is_same(captured.skipped);
  if (!same)
    fail<DeviceError>(
        "{}: parameter {} or its state is not where it was when the graph was captured "
        "(load_state_dict, Module::to, momentum turned on or off): capture the step again",
        name_, index);
}

// ---- Methods in tensor arithmetic

void Optimizer::update_one(const ParameterUpdate& /*update*/) {
  fail<Error>("{}: expected the optimizer to override update_one() or update_group()", name_);
}

void Optimizer::update_group(int group, std::span<const kernels::FusedUpdate> updates,
                             const double* /*scalars*/) {
  for (const kernels::FusedUpdate& u : updates) call_update_one(group, u);
}

// Calls update_one() with float32 or wider tensors. A step that overflowed is skipped: by the host
// for parameters on the CPU; on CUDA the device selects between the old values and the new ones,
// which update_one() then writes into copies.
void Optimizer::call_update_one(int group, const kernels::FusedUpdate& u) {
  const Device device = u.parameter.device();
  const DType dtype = u.parameter.dtype(), wide = accumulate_dtype(dtype);
  const bool may_skip = u.found_inf.defined(), selects = may_skip && !device.is_cpu();
  if (may_skip && !selects && u.found_inf.item<float>() != 0) {
    *u.skipped.data<float>() += 1;
    return;
  }
  const Tensor old = u.parameter.detach().to(wide);
  const Tensor parameter = selects && dtype == wide ? old.clone() : old;
  std::vector<Tensor> states;
  for (const Tensor& state : u.states) states.push_back(selects ? state.clone() : state.detach());
  Tensor step = full({}, static_cast<double>(u.step), {wide, device});
  if (u.skipped.defined()) step = step - u.skipped.to(wide);
  update_one({parameter, u.gradient.to(wide), states, step, group});
  if (!selects) {
    if (dtype != wide) u.parameter.copy_(parameter);
    if (u.rounded.defined()) u.rounded.copy_(u.parameter.detach());
    return;
  }
  const Tensor skips = ne(u.found_inf.reshape({}), 0);
  u.parameter.copy_(where(skips, u.parameter.detach().to(wide), parameter));
  for (std::size_t k = 0; k < states.size(); ++k)
    u.states[k].copy_(where(skips, u.states[k], states[k]));
  u.skipped.add_(skips.to(float32));
  if (u.rounded.defined()) u.rounded.copy_(u.parameter.detach());
}

}  // namespace tutti::optim
