// Optimizer: the base class of all optimizers. It owns the parameter groups, the options, the state
// tensors and the step counts; it checks every step, skips overflowed ones, saves and loads. A
// method adds its options and one function, update_one(), in tensor arithmetic
// (examples/custom_optimizer.cpp shows one). Nothing here knows modules or ranks.
#pragma once

#include "../core/state_dict.h"

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
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
  /// tensor of shape (): the device alone knows how many were skipped. The count itself is an
  /// int64; here it is rounded to the dtype of the other tensors.
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
  /// that the optimizer has at the replay. DeviceError if a parameter has not made a step yet: the
  /// graph would clear its state on every replay, so run one step before the capture. A replay
  /// throws DeviceError, and nothing runs, if a parameter or its state has moved since the capture
  /// (load_state_dict, Module::to), or if an option has changed that the method reads on the host
  /// (a flag, or what update_one() takes from options()); capture the step again then.
  void step(const Tensor& found_inf = {});
  /// Returns the parameters of all groups, in order.
  std::vector<Tensor> parameters() const;

  /// Returns the number of parameter groups.
  int group_count() const { return static_cast<int>(group_sizes_.size()); }
  /// Returns the option "lr" of a group.
  double learning_rate(int group = 0) const;
  /// Sets the learning rate of every group, or of one. ValueError, and no change, for a value
  /// outside the option's range.
  void set_learning_rate(double lr);
  void set_learning_rate(int group, double lr);
  /// Returns the option "momentum" of a group, or "beta1" for methods without a momentum.
  /// ValueError if there is neither.
  double momentum(int group = 0) const;
  /// Sets the momentum of every group. ValueError, and no change, if a group refuses the value.
  void set_momentum(double momentum) { set_rates({}, momentum); }

  /// Returns copies of the states, and the options.
  OptimizerState state_dict() const;
  /// CheckpointError, and no change, if the state is of another method, does not fit the parameters
  /// or is incomplete.
  void load_state_dict(const OptimizerState& state);

 protected:
  /// One row of a method's table of options. Legal values are finite, at least `min` and below
  /// `limit`; a flag is 0 or 1.
  struct Option {
    const char* name;
    double min, limit;
    bool is_flag;
  };

  /// ValueError if there is no parameter, if one is given twice or shares memory with another, or
  /// if one is not a dense leaf of a floating dtype.
  Optimizer(std::string name, std::vector<std::string> state_names,
            std::vector<std::vector<Tensor>> groups);
  /// Sets the table, and the values of all groups one after the other, each in the table's order.
  /// ValueError for values that are refused.
  void set_options(std::vector<Option> table, std::vector<double> values);
  /// Returns the present values of a group. ValueError if there is no such group.
  std::span<const double> option_values(int group) const;

  /// Computes the new values of one parameter and of its states. Nothing is recorded for autograd
  /// and autocast is off. For a skipped step, update_one() is not called or its results are thrown
  /// away. If it throws, the parameters before this one have made the step, and the others have
  /// not: load a saved state before going on.
  virtual void update_one(const ParameterUpdate& update);
  /// Returns one option of the update's group, by its place in the table, as
  /// OptimizerWith::option() says.
  Tensor option(std::size_t index, const ParameterUpdate& update);

  /// Updates the parameters of one group that are on one device. The default calls update_one()
  /// for each. A method with a fused kernel overrides it; see kernels/optimizer.h.
  virtual void update_group(int group, std::span<const kernels::FusedUpdate> updates);
  /// Returns the options of a group on a device, as float64 in the table's order, for a fused
  /// kernel that reads every number and no flag.
  const double* options_on(Device device, int group);
  /// How many of the state tensors the parameters of a group need with these options, from the
  /// first one on.
  virtual int state_count(int group, std::span<const double> options) const = 0;
  /// ValueError for options that do not go together. Ranges are checked before.
  virtual void check_options(int group, std::span<const double> options) const = 0;

 private:
  struct Slot {
    Tensor parameter;
    int group = 0;
    Tensor steps = {};                // The updates, without the skipped ones: int64 of shape ().
    std::vector<Tensor> states = {};  // One for each name. All are undefined until they are needed.
  };
  // The options of all groups as kernels read them, in one dtype on one device.
  struct DeviceOptions {
    Tensor tensor;
    std::vector<double> written;  // The values that the tensor has.
    std::vector<bool> is_read;    // The values that a step has read from the tensor.
  };
  using Slots = std::span<const std::size_t>;  // Indices into slots_.

  // step() in its order (optimizer.cpp).
  void check_memory() const;
  void check_parameter(std::size_t index) const;
  void check_states(std::size_t index) const;
  void check_found_inf(const Tensor& found_inf) const;
  void update_slots(Slots slots, const Tensor& found_inf);
  kernels::FusedUpdate prepare(Slot& slot, const Tensor& found_inf) const;
  void prepare_replays(Slots slots, std::span<const kernels::FusedUpdate> updates);
  bool updates_memory_of(const Slot& slot, const kernels::FusedUpdate& update) const;
  void check_not_frozen(int group, const std::vector<double>& captured) const;
  void call_update_one(int group, const kernels::FusedUpdate& update);
  int states_of(int group) const { return state_count(group, option_values(group)); }

  // The options and their copies in device memory (optimizer_options.cpp).
  std::span<const double> values_of(const std::vector<double>& values, int group) const;
  std::optional<std::size_t> find_number(std::string_view name) const;
  std::size_t index_of(std::optional<std::size_t> number, int group) const;
  void check_values(const std::vector<double>& values) const;
  void assign(std::vector<double> values);
  friend class Scheduler;
  // Sets the learning rate of each group, unless `rates` is empty, and the momentum of all groups.
  void set_rates(std::span<const double> rates, std::optional<double> momentum);
  DeviceOptions& options_of(DType dtype, Device device);
  void write(DeviceOptions& options) const;

  // The options of a saved state (optimizer_state.cpp).
  std::vector<double> read_options(const Metadata& metadata) const;

  std::string name_;
  std::vector<std::string> state_names_;
  std::vector<Slot> slots_;
  std::vector<std::int64_t> group_sizes_;
  std::vector<Option> table_;
  std::optional<std::size_t> rate_, momentum_;  // Their places in the table.
  std::vector<double> values_;
  std::vector<DeviceOptions> device_options_;
};

/// One member of a method's Options: {"lr", &Options::lr}. Numbers are finite, at least `min` and
/// below `limit`.
template <class Options>
struct OptionMember {
  const char* name;
  std::variant<double Options::*, bool Options::*> member;
  double min = 0;
  double limit = std::numeric_limits<double>::infinity();
};

/// Everything that describes a method, except its formula.
template <class Options>
struct Method {
  /// The name in error messages and in saved states.
  std::string name;
  /// Every number and flag of Options. Checks, saved states, schedules and captured graphs use this
  /// table. Schedules look for "lr", and for "momentum" or "beta1".
  std::vector<OptionMember<Options>> options;
  /// The names of the state tensors that every parameter has.
  std::vector<std::string> states = {};
  /// Throws ValueError for options that are legal one by one, but not together.
  std::function<void(const Options&)> check = {};
  /// How many of the states are needed, from the first one on; empty for all of them.
  std::function<int(const Options&)> state_count = {};
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
///       u.parameter.add_(option(&Options::lr, u) * u.gradient, -1);
///     }
///   };
template <class OptionsType>
class OptimizerWith : public Optimizer {
 public:
  using Options = OptionsType;
  using Group = ParameterGroup<Options>;

  /// Returns the present options of a group. ValueError if there is no such group.
  Options options(int group = 0) const { return with_values(group, option_values(group)); }

 protected:
  /// ValueError for an option out of range, and as the base class.
  OptimizerWith(Method<Options> method, const std::vector<Group>& groups)
      : Optimizer(method.name, method.states, parameters_of(groups)), method_(std::move(method)) {
    std::vector<Option> table;
    for (const auto& o : method_.options)
      table.push_back({o.name, o.min, o.limit, std::holds_alternative<bool Options::*>(o.member)});
    std::vector<double> values;
    for (const Group& group : groups) {
      given_.push_back(group.options);
      for (const auto& o : method_.options)
        values.push_back(std::visit(
            [&](auto member) { return static_cast<double>(group.options.*member); }, o.member));
    }
    set_options(std::move(table), std::move(values));
  }
  /// Returns an option of the parameter's group as a tensor of shape (), of the dtype and on the
  /// device of the update's tensors. A captured step reads the value of each replay from it, where
  /// a number from options() would be frozen. ValueError if the table has no such option.
  Tensor option(double Options::*member, const ParameterUpdate& update) {
    return Optimizer::option(index_of(member), update);
  }

 private:
  static std::vector<std::vector<Tensor>> parameters_of(const std::vector<Group>& groups) {
    std::vector<std::vector<Tensor>> result;
    for (const Group& group : groups) result.push_back(group.parameters);
    return result;
  }
  void check_options(int group, std::span<const double> values) const final {
    if (method_.check) method_.check(with_values(group, values));
  }
  int state_count(int group, std::span<const double> values) const final {
    return method_.state_count ? method_.state_count(with_values(group, values))
                               : static_cast<int>(method_.states.size());
  }
  Options with_values(int group, std::span<const double> values) const {
    Options result = given_[static_cast<std::size_t>(group)];
    for (std::size_t k = 0; k < values.size(); ++k)
      std::visit(
          [&](auto member) {
            auto& value = result.*member;
            value = static_cast<std::remove_reference_t<decltype(value)>>(values[k]);
          },
          method_.options[k].member);
    return result;
  }

  std::size_t index_of(double Options::*member) const {
    std::size_t index = 0;
    for (const auto& o : method_.options) {
      const auto* const number = std::get_if<double Options::*>(&o.member);
      if (number && *number == member) return index;
      ++index;
    }
    fail<ValueError>("{}: expected an option of the method's table, got another member",
                     method_.name);
  }

  Method<Options> method_;
  std::vector<Options> given_;  // Of each group, for members that the table leaves out.
};

}  // namespace tutti::optim
