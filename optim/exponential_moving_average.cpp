#include "exponential_moving_average.h"

#include "../autograd/functions.h"
#include "../autograd/grad_mode.h"
#include "../core/create.h"
#include "../core/excerpt.h"

#include <map>

namespace tutti::optim {

ExponentialMovingAverage::ExponentialMovingAverage(const StateDict& parameters,
                                                   const StateDict& buffers, double decay)
    : decay_(decay) {
  if (!(decay >= 0 && decay < 1))
    fail<ValueError>("ExponentialMovingAverage: decay must be at least 0 and below 1, got {}",
                     decay);
  for (const StateDict& tensors : {parameters, buffers})
    for (const auto& [name, tensor] : tensors)
      entries_.push_back({.name = name, .tensor = tensor, .average = tensor.detach().clone()});
}

void ExponentialMovingAverage::update() {
  const NoGrad no_grad;
  const bool is_first = updates_ == 0;
  for (const Entry& entry : entries_) {
    if (is_first || !is_floating(entry.average.dtype())) entry.average.copy_(entry.tensor);
    // In this form an average of equal values is that value, to the bit.
    else entry.average.add_(entry.tensor - entry.average, 1 - decay_);
  }
  ++updates_;
}

void ExponentialMovingAverage::exchange() {
  const NoGrad no_grad;
  for (const Entry& entry : entries_) {
    const Tensor values = entry.tensor.clone();
    entry.tensor.copy_(entry.average);
    entry.average.copy_(values);
  }
}

StateDict ExponentialMovingAverage::state_dict() const {
  StateDict state{{"updates", full({}, static_cast<double>(updates_), {.dtype = int64})}};
  for (const Entry& entry : entries_) state.emplace_back("average." + entry.name, entry.average);
  return state;
}

void ExponentialMovingAverage::check_state_dict(const StateDict& state) const {
  std::map<std::string, Tensor> missing;
  for (const auto& [name, tensor] : state_dict()) missing.emplace(name, tensor);
  for (const auto& [name, tensor] : state) {
    const auto found = missing.find(name);
    if (found == missing.end())
      fail<CheckpointError>("averaged weights: '{}' is unknown, or occurs twice", excerpt(name));
    const Tensor& mine = found->second;
    if (tensor.dtype() != mine.dtype() || !(tensor.shape() == mine.shape()))
      fail<CheckpointError>("averaged weights: '{}' is {} {}, expected {} {}", name,
                            to_string(tensor.dtype()), to_string(tensor.shape()),
                            to_string(mine.dtype()), to_string(mine.shape()));
    if (name == "updates" && tensor.item<std::int64_t>() < 0)
      fail<CheckpointError>("averaged weights: 'updates' must be at least 0, got {}",
                            tensor.item<std::int64_t>());
    missing.erase(found);
  }
  if (!missing.empty())
    fail<CheckpointError>("averaged weights: '{}' is missing", missing.begin()->first);
}

void ExponentialMovingAverage::load_state_dict(const StateDict& state) {
  check_state_dict(state);
  const NoGrad no_grad;
  const std::map<std::string, Tensor> values(state.begin(), state.end());
  for (const Entry& entry : entries_) entry.average.copy_(values.at("average." + entry.name));
  updates_ = values.at("updates").item<std::int64_t>();
}

}  // namespace tutti::optim
