#include "common.h"

#include "../core/create.h"

#include <cmath>

namespace tutti::optim {

std::vector<Tensor> dense_gradients(const char* op, const std::vector<Tensor>& parameters) {
  std::vector<Tensor> gradients;
  for (const Tensor& p : parameters) {
    Tensor g = p.grad();
    if (!g.defined()) continue;
    if (!g.is_dense()) {
      const Tensor dense = empty_like(p);
      dense.copy_(g);
      p.set_grad(g = dense);
    }
    if (!gradients.empty() && g.device() != gradients.front().device())
      fail<DeviceError>("{}: expected all gradients on one device, got {} and {}", op,
                        to_string(gradients.front().device()), to_string(g.device()));
    gradients.push_back(g);
  }
  return gradients;
}

StateDict number_state(const std::vector<std::pair<const char*, double>>& numbers) {
  StateDict state;
  for (const auto& [name, value] : numbers)
    state.emplace_back(name, scalar(value, {.dtype = float64}));
  return state;
}

std::map<std::string, double> read_numbers(const char* owner, const StateDict& state,
                                           const std::vector<NumberRange>& ranges) {
  std::map<std::string, double> numbers;
  for (const auto& [key, tensor] : state)
    if (tensor.defined() && tensor.rank() == 0 && tensor.dtype() == float64)
      numbers.emplace(key, tensor.item<double>());
  for (const NumberRange& r : ranges) {
    if (!numbers.contains(r.name))
      fail<CheckpointError>("{} state: expected '{}' as a float64 tensor of shape ()", owner,
                            r.name);
    const double value = numbers.at(r.name);
    if (!(value >= r.low && value <= r.high) || (r.is_whole && value != std::floor(value)))
      fail<CheckpointError>("{} state: {} must be a {}number from {} to {}, got {}", owner, r.name,
                            r.is_whole ? "whole " : "", r.low, r.high, value);
  }
  if (state.size() != ranges.size())
    fail<CheckpointError>("{} state: expected {} tensors, got {}", owner, ranges.size(),
                          state.size());
  return numbers;
}

}  // namespace tutti::optim
