// What several files of optim/ share: the gradients of a list of parameters, and states that are a
// few numbers. An implementation detail of optim/.
#pragma once

#include "../core/state_dict.h"

#include <limits>
#include <map>
#include <string>
#include <vector>

namespace tutti::optim {

/// Returns the gradients of the parameters that have one. A gradient that is not dense is replaced
/// by a dense copy. DeviceError that names `op` if they are on several devices. Call it inside
/// NoGrad.
std::vector<Tensor> dense_gradients(const char* op, const std::vector<Tensor>& parameters);

/// One number of a state, and its legal values.
struct NumberRange {
  const char* name;
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool is_whole = false;
};

/// Returns the numbers as float64 tensors of shape ().
StateDict number_state(const std::vector<std::pair<const char*, double>>& numbers);
/// Returns the numbers of such a state by name. CheckpointError that names `owner` unless the state
/// has exactly these numbers, each in its range.
std::map<std::string, double> read_numbers(const char* owner, const StateDict& state,
                                           const std::vector<NumberRange>& ranges);

}  // namespace tutti::optim
