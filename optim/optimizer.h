// Optimizer: the base class of all optimizers. It owns the parameter groups, the state tensors and
// the step counts; it checks every step, skips overflowed ones, saves and loads. A method adds its
// options and one function, update_one(), in tensor arithmetic (examples/custom_optimizer.cpp shows
// two). Gradients are read where autograd left them. Nothing here knows modules or ranks.
#pragma once

#include "../core/state_dict.h"

#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tutti::kernels {
struct FusedUpdate;
}

namespace tutti::optim {

/// Parameters that share options. Every method takes a list of groups, or one list of parameters
/// with its options.
template <class Options>
struct ParameterGroup {
  std::vector<Tensor> parameters;
  Options options;
};

/// Everything that a resumed run needs: the state tensors ("steps", "3.momentum"; parameters are
/// counted through all groups) and every option ("group.0.lr"). It fits save_safetensors.
struct OptimizerState {
  StateDict tensors;
  Metadata metadata;
};

/// One parameter in one step, as update_one() gets it. All tensors are on the parameter's device,
/// in accumulate_dtype of its dtype: float32 for a 16-bit parameter, whose new value the base class
/// rounds back.
struct ParameterUpdate {
  /// update_one() writes the new value into this tensor, in place.
  Tensor parameter;
  /// The gradient, which update_one() must not change.
  Tensor gradient;
  /// The state tensors, in the order of their names, of the parameter's shape. They are zero before
  /// the first update. update_one() writes their new values in place.
  std::span<const Tensor> states;
  /// The number of this update of the parameter, counted from 1 without the skipped ones, as a
  /// tensor of shape (): the device alone knows how many were skipped. It is exact up to 2^24 in
  /// float32.
  Tensor step;
  /// The parameter's group, for options(group).
  int group = 0;
};

/// The base class of all optimizers. Own optimizers derive from OptimizerWith.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Clears the gradient of every parameter (to undefined, not to zeros).
  void zero_grad();
  /// Updates, in place, every parameter that has a gradient. The other parameters and their state
  /// do not change. If `found_inf` (float32 of one element, on the parameters' device) is not 0,
  /// nothing changes; on CUDA the device decides this, and the host does not wait (grad_scaler.h).
  ///
  /// ShapeError, DTypeError or DeviceError, and no change, if a parameter, its gradient and its
  /// state no longer fit together, for instance after Tensor::set_data() or Module::to(dtype).
  ///
  /// While a cuda::Graph is captured, nothing is updated. Each replay is one step, with the options
  /// that the optimizer has at the replay. DeviceError if a parameter has no state yet, which the
  /// graph would clear on every replay (run one step before the capture), and for methods that
  /// override only update_one(), whose options the graph would freeze (call step() after each
  /// replay instead). A replay throws DeviceError if a parameter or its state has moved since the
  /// capture (load_state_dict, Module::to); capture the step again then.
  void step(const Tensor& found_inf = {});
  /// Returns the parameters of all groups, in order.
  std::vector<Tensor> parameters() const;

  /// Returns the number of parameter groups.
  int group_count() const { return static_cast<int>(group_sizes_.size()); }
  /// Returns the option "lr" of a group.
  double learning_rate(int group = 0) const { return number("lr", group); }
  /// Sets the learning rate of every group, or of one. ValueError, and no change, for a value
  /// outside the option's range.
  void set_learning_rate(double lr);
  void set_learning_rate(int group, double lr);
  /// Returns the option "momentum" of a group, or "beta1" for methods without a momentum.
  /// ValueError if there is neither.
  double momentum(int group = 0) const;
  /// Sets the momentum of every group. ValueError, and no change, if a group refuses the value.
  void set_momentum(double momentum);

  /// Returns copies of the states, and the options.
  OptimizerState state_dict() const;
  /// CheckpointError, and no change, if the state is of another method, does not fit the parameters
  /// or is incomplete.
  void load_state_dict(const OptimizerState& state);

 protected:
  /// One option of one group. Its legal values are those from `low` up to, not including, `below`.
  struct Option {
    const char* name;
    std::variant<double*, bool*> value;
    double low, below;
  };

  /// ValueError if there is no parameter, if one is given twice, or if one is not a dense leaf of a
  /// floating dtype.
  Optimizer(std::string name, std::vector<std::string> state_names,
            std::vector<std::vector<Tensor>> groups);
  /// Tells the base class where the options of all groups are stored, and checks them.
  void set_options(std::vector<std::vector<Option>> options);

  /// Computes the new values of one parameter and of its states. Nothing is recorded for autograd
  /// and autocast is off. For a skipped step, update_one() is not called or its results are thrown
  /// away. If it throws, the parameters before this one keep their new values, but the step is not
  /// counted for them: load a saved state before going on.
  virtual void update_one(const ParameterUpdate& update);
  /// Updates the parameters of one group that are on one device. The default calls update_one()
  /// for each. A method with a fused kernel overrides it; see kernels/optimizer.h for `updates` and
  /// `scalars`, the numbers of a captured step.
  virtual void update_group(int group, std::span<const kernels::FusedUpdate> updates,
                            const double* scalars);
  /// Whether update_group() computes with `scalars`, so that a cuda::Graph may capture a step.
  virtual bool is_capturable() const { return false; }
  /// How many of the state tensors the parameters of a group need, from the first one on.
  virtual int state_count(int group) const;
  /// ValueError for options that do not go together. Ranges are checked before.
  virtual void check_options(int group) const = 0;
  /// ValueError if there is no such group.
  void expect_group(int group) const;

 private:
  struct Slot {
    Tensor parameter;
    int group = 0;
    std::int64_t steps = 0;           // The number of updates, skipped ones included.
    Tensor skipped = {};              // float32 of shape (); undefined until a step may be skipped.
    std::vector<Tensor> states = {};  // One for each name, undefined until it is needed.
  };
  using Slots = std::span<const std::size_t>;  // Indices into slots_.
  using OptionValues = std::vector<std::vector<double>>;

  // step() in its order (optimizer.cpp).
  std::vector<std::size_t> slots_with_gradient() const;
  void check_parameter(std::size_t index) const;
  void check_states(std::size_t index) const;
  void check_found_inf(const Tensor& found_inf) const;
  void check_capture(std::size_t index, const Tensor& found_inf) const;
  void make_skip_counts(Device device);
  void update_slots(Slots slots, const Tensor& found_inf);
  kernels::FusedUpdate prepare(Slot& slot, const Tensor& found_inf) const;
  const double* replay_scalars(Slots slots, std::span<const kernels::FusedUpdate> updates);
  void check_not_moved(std::size_t index, const kernels::FusedUpdate& captured,
                       const void* address) const;
  void call_update_one(int group, const kernels::FusedUpdate& update);

  // Options by name (optimizer_options.cpp).
  double* find_number(const char* name, int group) const;
  double& number(const char* name, int group) const;
  void set_number(const char* name, int first_group, int last_group, double value);
  const char* momentum_name() const;
  void check_all_options() const;
  void check_group_options(int group) const;
  void check_range(const Option& option) const;

  // state_dict(), then load_state_dict() in its order (optimizer_state.cpp).
  OptionValues option_values() const;
  void assign_options(const OptionValues& values);
  void check_identity(const Metadata& metadata) const;
  OptionValues read_options(const Metadata& metadata) const;
  std::vector<double> read_counts(const StateDict& tensors) const;
  std::vector<std::vector<Tensor>> read_states(const StateDict& tensors,
                                               const std::vector<double>& counts) const;
  Tensor read_state(const StateDict& tensors, std::size_t index, std::size_t state,
                    double count) const;

  std::string name_;
  std::vector<std::string> state_names_;
  std::vector<Slot> slots_;
  std::vector<std::int64_t> group_sizes_;
  std::vector<std::vector<Option>> options_;  // Of each group, in the order of the method's table.
};

/// One member of a method's Options: {"lr", &Options::lr}. Numbers are finite, at least `low` and
/// below `below`.
template <class Options>
struct OptionMember {
  const char* name;
  std::variant<double Options::*, bool Options::*> member;
  double low = 0;
  double below = std::numeric_limits<double>::infinity();
};

/// Everything that describes a method, except its formula.
template <class Options>
struct Method {
  /// The name in error messages and in saved states.
  std::string name;
  /// Every member of Options. Checks, saved states, schedules and captured graphs use this table.
  /// Schedules look for "lr", and for "momentum" or "beta1".
  std::vector<OptionMember<Options>> options;
  /// The names of the state tensors that every parameter has.
  std::vector<std::string> states = {};
  /// Throws ValueError for options that are legal one by one, but not together.
  std::function<void(const Options&)> check = {};
};

/// An optimizer whose options are the members of a struct. A method derives from this class:
///
///   struct MySgdOptions { double lr = 0.1; };
///   class MySgd : public optim::OptimizerWith<MySgdOptions> {
///    public:
///     explicit MySgd(const std::vector<Group>& groups)
///         : OptimizerWith({.name = "MySgd", .options = {{"lr", &Options::lr}}}, groups) {}
///
///    protected:
///     void update_one(const optim::ParameterUpdate& u) override {
///       u.parameter.add_(u.gradient, -options(u.group).lr);
///     }
///   };
template <class OptionsType>
class OptimizerWith : public Optimizer {
 public:
  using Options = OptionsType;
  using Group = ParameterGroup<Options>;

  /// Returns the present options of a group. ValueError if there is no such group.
  const Options& options(int group = 0) const {
    expect_group(group);
    return values_[static_cast<std::size_t>(group)];
  }

 protected:
  /// ValueError for an option out of range, and as the base class.
  OptimizerWith(Method<Options> method, const std::vector<Group>& groups)
      : Optimizer(method.name, std::move(method.states), parameters_of(groups)),
        check_(std::move(method.check)) {
    for (const Group& group : groups) values_.push_back(group.options);
    std::vector<std::vector<Option>> options;
    for (Options& values : values_) {
      auto& of_group = options.emplace_back();
      for (const OptionMember<Options>& o : method.options)
        of_group.push_back({o.name, address_of(values, o), o.low, o.below});
    }
    set_options(std::move(options));
  }

  void check_options(int group) const override {
    if (check_) check_(options(group));
  }

 private:
  static std::vector<std::vector<Tensor>> parameters_of(const std::vector<Group>& groups) {
    std::vector<std::vector<Tensor>> result;
    for (const Group& group : groups) result.push_back(group.parameters);
    return result;
  }
  static std::variant<double*, bool*> address_of(Options& values,
                                                 const OptionMember<Options>& option) {
    using Address = std::variant<double*, bool*>;
    return std::visit([&](auto member) { return Address(&(values.*member)); }, option.member);
  }

  std::vector<Options> values_;
  std::function<void(const Options&)> check_;
};

}  // namespace tutti::optim
