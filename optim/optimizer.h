// Optimizer: what all methods share: parameter groups, per-parameter state, clearing gradients,
// saving and loading. A method adds its options, how many state tensors a parameter has, and one
// call of a kernel. Gradients are read where autograd left them; nothing here knows modules or
// ranks.
#pragma once

#include "../core/state_dict.h"
#include "../kernels/optimizer.h"

#include <array>
#include <string>
#include <vector>

namespace tutti::optim {

/// Parameters that share options. Every method takes a list of these, or one list of parameters
/// with its options.
template <class Options>
struct ParameterGroup {
  std::vector<Tensor> parameters;
  Options options;
};

/// Everything needed to go on later: the state tensors ("steps", "3.momentum"; parameters are
/// counted through all groups) and every option ("group.0.lr"). Fits save_safetensors.
struct OptimizerState {
  StateDict tensors;
  Metadata metadata;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Clears the gradient of every parameter (to undefined, not to zeros).
  void zero_grad();
  /// Updates, in place, every parameter that has a gradient; the others and their state stay as
  /// they are. With `found_inf` (float32 of one element, on the parameters' device) nothing changes
  /// where that is not 0, which the device decides for itself: nobody waits (grad_scaler.h).
  ///
  /// In a cuda::Graph nothing happens yet: each replay is a step, with the options that the
  /// optimizer then has. DeviceError where a parameter has no state yet, which the graph would
  /// clear on every replay: run a step before. A replay throws DeviceError where a parameter or its
  /// state is no longer where it was (load_state_dict, Module::to): record again.
  void step(const Tensor& found_inf = {});
  /// Of all groups, in order.
  std::vector<Tensor> parameters() const;

  int group_count() const { return static_cast<int>(group_sizes_.size()); }
  double learning_rate(int group = 0) const { return number("lr", group); }
  void set_learning_rate(
      double lr);  ///< of every group. ValueError, and no change, unless finite and >= 0
  void set_learning_rate(int group, double lr);
  double momentum(int group = 0) const;  ///< Adam's beta1
  void set_momentum(double momentum);    ///< of every group; ValueError, and no change, where the
                                         ///< method refuses it in one

  OptimizerState state_dict() const;
  /// CheckpointError, and no change, where the state is of another method, does not fit the
  /// parameters or is incomplete.
  void load_state_dict(const OptimizerState& state);

 protected:
  /// An option by name, for saving, loading and schedules; in the order of the members of the
  /// method's kernels::...Step.
  struct Option {
    const char* name;
    double* number;  ///< one of the two
    bool* flag;
  };

  /// ValueError where there is no parameter, one is given twice, or one is no dense floating leaf.
  Optimizer(std::string name, std::vector<std::string> state_names,
            std::vector<std::vector<Tensor>> groups);

  virtual std::vector<Option> options(int group) = 0;
  virtual void check_options(int group) const = 0;  ///< ValueError for an option out of range
  virtual int state_count(
      int group) const = 0;  ///< how many state tensors a parameter has, at most 2
  virtual void update(int group, std::span<const kernels::ParameterUpdate> updates,
                      kernels::ReplayScalars live) = 0;

  /// ValueError unless low <= value < high and value is finite.
  void expect(const char* option, double value, double low, double high) const;

 private:
  void count_skipped(const Tensor& found_inf);
  void expect_state(std::size_t index, const Tensor& found_inf) const;
  kernels::ReplayScalars record(int group, const std::vector<std::size_t>& slots,
                                const std::vector<kernels::ParameterUpdate>& updates);
  struct Slot {
    Tensor parameter;
    int group;
    std::int64_t steps = 0;  // those that `skipped` counts included
    Tensor skipped = {};     // undefined until a step might be skipped
    std::array<Tensor, 2> state = {};
  };
  double* find(const char* option, int group) const;
  double number(const char* option, int group) const;
  void set_number(const char* option, int first, int last,
                  double value);  // of groups first to last, or of none
  const char* momentum_name() const;

  std::string name_;
  std::vector<std::string> state_names_;
  std::vector<Slot> slots_;
  std::vector<std::int64_t> group_sizes_;
};

/// Splits groups into their parameters and their options, for the constructors of the methods.
template <class Options>
std::vector<std::vector<Tensor>> parameters_of(const std::vector<ParameterGroup<Options>>& groups) {
  std::vector<std::vector<Tensor>> result;
  for (const auto& group : groups) result.push_back(group.parameters);
  return result;
}
template <class Options>
std::vector<Options> options_of(const std::vector<ParameterGroup<Options>>& groups) {
  std::vector<Options> result;
  for (const auto& group : groups) result.push_back(group.options);
  return result;
}

}  // namespace tutti::optim
