// The constructor and step() of an optimizer. optimizer_options.cpp has its options, and
// optimizer_state.cpp its saved state.
#include "optimizer.h"

#include "../autograd/functions.h"
#include "../autograd/grad_mode.h"
#include "../autograd/node.h"
#include "../core/create.h"
#include "../core/cuda/graph.h"
#include "../core/memory.h"
#include "../core/overlap.h"
#include "../kernels/optimizer.h"
#include "../kernels/rounded_weights.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

namespace tutti::optim {
namespace {

bool same_layout(const Tensor& a, const Tensor& b) {
  for (int d = 0; d < a.rank(); ++d)
    if (a.shape()[d] > 1 && a.strides()[d] != b.strides()[d]) return false;
  return true;
}

// Returns `tensor` in the layout and on the device of `parameter`: itself in nearly all cases;
// zeros if it is undefined.
Tensor matched(const Tensor& tensor, const Tensor& parameter, DType dtype) {
  if (tensor.defined() && tensor.device() == parameter.device() && same_layout(tensor, parameter))
    return tensor;
  const Tensor result = empty_like(parameter, dtype);
  if (tensor.defined()) result.copy_(tensor.detach());
  else result.zero_();
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
  check_memory();
}

// Refuses parameters that share memory, which a step would change twice.
void Optimizer::check_memory() const {
  std::vector<std::size_t> order;  // by address
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].parameter.numel() > 0) order.push_back(i);
  const auto address = [this](std::size_t i) { return slots_[i].parameter.raw(); };
  std::ranges::sort(order, {}, address);
  for (std::size_t k = 1; k < order.size(); ++k)
    if (overlap(slots_[order[k - 1]].parameter, slots_[order[k]].parameter))
      fail<ValueError>(
          "{}: parameters {} and {} share memory, so that each step would change it twice; pass "
          "one of them, or make both one tensor with Module::replace_tensor()",
          name_, order[k - 1], order[k]);
}

void Optimizer::zero_grad() {
  for (const Slot& slot : slots_) slot.parameter.set_grad({});
}

std::vector<Tensor> Optimizer::parameters() const {
  std::vector<Tensor> result;
  for (const Slot& slot : slots_) result.push_back(slot.parameter);
  return result;
}

// ---- A step. Everything is checked before anything changes.

void Optimizer::step(const Tensor& found_inf) {
  const NoGrad no_grad;
  const Autocast off(float32);
  std::vector<std::size_t> due;
  due.reserve(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].parameter.grad().defined()) continue;
    check_parameter(i);
    check_states(i);
    due.push_back(i);
  }
  if (found_inf.defined()) check_found_inf(found_inf);
  // Neighbours in the same group and on the same device are updated together.
  for (std::size_t first = 0, last = 0; first < due.size(); first = last) {
    const Slot& slot = slots_[due[first]];
    const auto joins = [&](const Slot& next) {
      return next.group == slot.group && next.parameter.device() == slot.parameter.device();
    };
    while (last < due.size() && joins(slots_[due[last]])) ++last;
    update_slots(Slots(due).subspan(first, last - first), found_inf);
  }
  for (const Slot& slot : slots_)
    autograd::meta_of(slot.parameter).optimizer_steps.fetch_add(1, std::memory_order_relaxed);
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
  const auto expect = [&]<class E>(const auto& expected, const auto& got) {
    if (!(expected == got))
      fail<E>(
          "{}: gradient of parameter {}: expected {} as the parameter, got {}; clear it with "
          "zero_grad() and run backward again",
          name_, index, to_string(expected), to_string(got));
  };
  expect.template operator()<ShapeError>(p.shape(), g.shape());
  expect.template operator()<DTypeError>(p.dtype(), g.dtype());
  expect.template operator()<DeviceError>(p.device(), g.device());
}

// A state may be on another device or in another layout: it follows its parameter.
void Optimizer::check_states(std::size_t index) const {
  const Slot& slot = slots_[index];
  for (std::size_t k = 0; k < slot.states.size(); ++k) {
    const auto expect = [&]<class E>(const auto& expected, const auto& got) {
      if (!(expected == got))
        fail<E>(
            "{}: state '{}' of parameter {}: expected {} for the parameter, got {}; make a new "
            "optimizer after changing the shape or the dtype of a parameter",
            name_, state_names_[k], index, to_string(expected), to_string(got));
    };
    const Tensor &p = slot.parameter, state = slot.states[k];
    if (!state.defined() || static_cast<int>(k) >= states_of(slot.group)) continue;
    expect.template operator()<ShapeError>(p.shape(), state.shape());
    expect.template operator()<DTypeError>(accumulate_dtype(p.dtype()), state.dtype());
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

// Updates parameters of one group that are on one device.
void Optimizer::update_slots(Slots slots, const Tensor& found_inf) {
  const Slot& first = slots_[slots.front()];
  const Device device = first.parameter.device();
  std::vector<kernels::FusedUpdate> updates;
  updates.reserve(slots.size());
  const bool captured = cuda::is_capturing(device);
  for (const std::size_t i : slots) {
    const Slot before = slots_[i];
    updates.push_back(prepare(slots_[i], found_inf));
    if (!captured || updates_memory_of(before, updates.back())) continue;
    slots_[i] = before;  // A replay would clear what the capture has made.
    fail<DeviceError>(
        "{}: the step cannot be captured into a graph, since parameter {} of shape {} has no state "
        "yet (or a state for another device or layout); run a step without a graph before",
        name_, i, to_string(before.parameter.shape()));
  }
  if (captured) prepare_replays(slots, updates);
  update_group(first.group, updates);
  const auto count = [updates = std::move(updates)] {
    for (const auto& u : updates) kernels::count_update(u.parameter, u.rounded);
  };
  count();
  if (captured) cuda::call_before_replay(device, count);
}

// Makes the count and the states that are missing, and brings tensors into the parameter's layout.
kernels::FusedUpdate Optimizer::prepare(Slot& slot, const Tensor& found_inf) const {
  const Device device = slot.parameter.device();
  const DType dtype = slot.parameter.dtype();
  slot.steps = slot.steps.defined() ? slot.steps.to(device) : zeros({}, {int64, device});
  kernels::FusedUpdate u{.parameter = slot.parameter,
                         .gradient = matched(slot.parameter.grad(), slot.parameter, dtype),
                         .steps = slot.steps,
                         .found_inf = found_inf};
  u.states.assign(slot.states.begin(), slot.states.begin() + states_of(slot.group));
  for (std::size_t k = 0; k < u.states.size(); ++k)
    u.states[k] = slot.states[k] = matched(u.states[k], slot.parameter, accumulate_dtype(dtype));
  u.rounded = kernels::copy_to_update(slot.parameter);
  return u;
}

// ---- A captured step

// Lets every replay of the graph first check that it updates what it has captured, and then bring
// the options on the device and the 16-bit copies of weights up to date.
void Optimizer::prepare_replays(Slots slots, std::span<const kernels::FusedUpdate> updates) {
  const int group = slots_[slots.front()].group;
  const Device device = updates.front().parameter.device();
  std::vector<const void*> addresses;
  for (const auto& u : updates) addresses.push_back(u.parameter.raw());
  const auto prepare = [this, group, device, addresses, options = values_,
                        indices = std::vector(slots.begin(), slots.end()),
                        captured = std::vector(updates.begin(), updates.end())] {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const Slot& slot = slots_[indices[i]];
      if (slot.parameter.raw() != addresses[i] || !updates_memory_of(slot, captured[i]))
        fail<DeviceError>(
            "{}: parameter {} or its state is not where it was when the graph was captured "
            "(load_state_dict, Module::to, momentum turned on or off): capture the step again",
            name_, indices[i]);
    }
    check_not_frozen(group, options);
    for (const auto& u : captured)
      if (u.rounded.defined()) kernels::copy_to_update(u.parameter);
    for (DeviceOptions& o : device_options_)
      if (o.tensor.device() == device) write(o);
  };
  if (!cuda::call_before_replay(device, prepare))
    fail<DeviceError>(
        "{}: {} is not captured by a cuda::Graph of this thread; a capture by other means has no "
        "replay() that could pass on the learning rate",
        name_, to_string(device));
}

// Returns whether the count and the needed states of a parameter are those of `update`.
bool Optimizer::updates_memory_of(const Slot& slot, const kernels::FusedUpdate& update) const {
  const auto is_same = [](const Tensor& a, const Tensor& b) { return a.defined() && a.is_same(b); };
  bool same = is_same(slot.steps, update.steps) &&
              static_cast<std::size_t>(states_of(slot.group)) == update.states.size();
  for (std::size_t k = 0; same && k < update.states.size(); ++k)
    same = is_same(slot.states[k], update.states[k]);
  return same;
}

// The graph has frozen the options of the group that no kernel reads from the device.
void Optimizer::check_not_frozen(int group, const std::vector<double>& captured) const {
  const std::size_t first = static_cast<std::size_t>(group) * table_.size();
  for (std::size_t i = first; i < first + table_.size(); ++i) {
    const auto is_read = [i](const DeviceOptions& o) { return o.is_read[i]; };
    if (values_[i] == captured[i] || std::ranges::any_of(device_options_, is_read)) continue;
    const char* const name = table_[i - first].name;
    fail<DeviceError>(
        "{}: the option '{}' was {} when the graph was captured and is now {}, but the captured "
        "step does not read it from the device: capture the step again, or let update_one() take "
        "it from option(&Options::{}, update)",
        name_, name, captured[i], values_[i], name);
  }
}

// ---- Methods in tensor arithmetic

void Optimizer::update_one(const ParameterUpdate& /*update*/) {
  fail<Error>("{}: expected the optimizer to override update_one() or update_group()", name_);
}

void Optimizer::update_group(int group, std::span<const kernels::FusedUpdate> updates) {
  for (const kernels::FusedUpdate& u : updates) call_update_one(group, u);
}

// Calls update_one() with float32 or wider tensors. A step that overflowed is skipped: by the host
// for parameters on the CPU; on CUDA the device selects between the old values and the new ones,
// which update_one() then writes into copies.
void Optimizer::call_update_one(int group, const kernels::FusedUpdate& u) {
  const bool may_skip = u.found_inf.defined(), selects = may_skip && !u.parameter.device().is_cpu();
  const DType dtype = u.parameter.dtype(), wide = accumulate_dtype(dtype);
  if (may_skip && !selects && u.found_inf.item<float>() != 0) return;
  const Tensor old = u.parameter.detach().to(wide);
  const Tensor parameter = selects && dtype == wide ? old.clone() : old;
  std::vector<Tensor> states;
  for (const Tensor& state : u.states) states.push_back(selects ? state.clone() : state.detach());
  const Tensor before = u.steps.to(float64), step = before + 1.0;  // Exact up to 2^53.
  update_one({parameter, u.gradient.to(wide), states, step.to(wide), group});
  if (selects) {
    const Tensor skips = ne(u.found_inf.reshape({}), 0);
    u.parameter.copy_(where(skips, u.parameter.detach().to(wide), parameter));
    for (std::size_t k = 0; k < states.size(); ++k)
      u.states[k].copy_(where(skips, u.states[k], states[k]));
    u.steps.copy_(where(skips, before, step));
  } else {
    if (dtype != wide) u.parameter.copy_(parameter);
    u.steps.copy_(step);
  }
  if (u.rounded.defined()) u.rounded.copy_(u.parameter.detach());
}

}  // namespace tutti::optim
