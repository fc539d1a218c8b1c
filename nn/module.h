// Module: a tree of named children, parameters and buffers. A module owns what is added to it;
// members are references that `add` hands out, so a model is a plain struct. What a module computes
// is a Layer's business.
#pragma once

#include "../core/create.h"
#include "../core/state_dict.h"
#include "../core/trace.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tutti::nn {

/// What load_state_dict did not find and what it found too much; both empty after a strict load.
struct LoadReport {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
};

class Module {
 public:
  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // ---- building. Each throws ValueError where the name is empty, holds a '.', or is taken in this
  // module.
  /// Makes a T and adds it as a child: add<Conv2d>("conv", {.in = 3, .out = 8}) or
  /// add<Block>("block", 64).
  template <class T>
  requires requires { typename T::Options; }
  T& add(const std::string& name, const typename T::Options& options) {
    return add_child(name, std::make_shared<T>(options));
  }
  template <class T, class... Args>
  requires std::is_constructible_v<T, Args...> T& add(const std::string& name, Args&&... args) {
    return add_child(name, std::make_shared<T>(std::forward<Args>(args)...));
  }
  /// Adds an existing module. The same one may be added under several names (shared weights).
  /// ValueError where it is null or contains this module.
  template <class T>
  T& add_child(const std::string& name, const std::shared_ptr<T>& child) {
    insert_child(name, child);
    return *child;
  }
  /// A trained tensor; requires grad from now on. An undefined tensor registers an absent parameter
  /// (no bias).
  Tensor& add_parameter(const std::string& name, Tensor tensor);
  /// State that is saved but not trained.
  Tensor& add_buffer(const std::string& name, Tensor tensor);

  // ---- looking. Names are paths: "layer1.0.bn1.weight". Shared tensors and modules appear once,
  // at their first path.
  StateDict named_parameters() const;
  StateDict named_buffers() const;
  std::vector<Tensor> parameters() const;
  using Children = std::vector<std::pair<std::string, std::shared_ptr<Module>>>;
  const Children& children() const { return children_; }  ///< direct ones, in the order of adding
  /// This module ("") and every one below it, depth first, parents before children, in the order of
  /// adding.
  std::vector<std::pair<std::string, Module*>> named_modules();
  std::vector<std::pair<std::string, const Module*>> named_modules() const;
  /// From the root of the tree that it was first added to: "layer1.0.bn1"; "" for a root.
  std::string path() const;
  std::int64_t parameter_count() const;
  virtual std::string type_name() const;  ///< "Conv2d"; defaults to the C++ class name
  virtual std::string describe() const;   ///< the options, as in "3, 64, kernel=3"; default empty
  std::string to_string() const;          ///< the tree with options, shapes and parameter count

  // ---- changing
  void apply(const std::function<void(Module&)>& fn);  ///< every module, children before parents
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }
  /// Parameters and floating buffers move in place: handles (an optimizer's) stay valid, gradients
  /// of what moved are dropped. Integer buffers keep their dtype. `format` applies to tensors of
  /// rank 4 and 5. DTypeError for a dtype that is not floating, DeviceError for a device that is
  /// not there; nothing has changed then.
  void to(std::optional<Device> device, std::optional<DType> dtype = {},
          std::optional<MemoryFormat> format = {});
  void to(DType dtype) { to(std::nullopt, dtype); }
  void to(Device device, MemoryFormat format) { to(device, std::nullopt, format); }
  void to(MemoryFormat format) { to(std::nullopt, std::nullopt, format); }
  void zero_grad();  ///< clears the gradients

  // ---- state: PyTorch's names
  /// Parameters and buffers, detached, sharing storage; what is shared stands under each of its
  /// paths.
  StateDict state_dict() const;
  /// Copies values in, converting dtypes. CheckpointError (and nothing changed) where a shape
  /// differs, a name occurs twice or, if `strict`, a name is missing or unexpected; the message
  /// lists all of them.
  LoadReport load_state_dict(const StateDict& state, bool strict = true);

 protected:
  /// The dtype that `own`, a floating tensor of this module, takes when the module is moved to
  /// `requested`. Normalisation keeps float32.
  virtual DType own_dtype(const Tensor& /*own*/, DType requested) const { return requested; }
  /// Called after train(), to() and load_state_dict(), for modules that keep derived state.
  virtual void changed() {}

 private:
  struct Named {
    std::string name;
    Tensor tensor;
  };
  // unique_ptr: references handed out stay valid while more are added.
  using NamedTensors = std::vector<std::unique_ptr<Named>>;

  Tensor& insert_tensor(NamedTensors& into, const std::string& name, Tensor tensor);
  void insert_child(const std::string& name, std::shared_ptr<Module> child);
  void check_name(const std::string& name) const;
  bool contains(const Module* module) const;
  StateDict collect(NamedTensors Module::*kind) const;
  void collect_state(const std::string& prefix, StateDict& state) const;
  void print(const std::string& indent, std::string& text) const;

  NamedTensors parameters_, buffers_;
  Children children_;
  const Module* parent_ = nullptr;  // where it was added first; cleared when that one dies
  std::string name_;
  bool training_ = true;
};

/// A module from one tensor to one tensor.
class Layer : public Module {
 public:
  virtual Tensor forward(const Tensor& input) = 0;
  /// forward, then the hooks.
  Tensor operator()(const Tensor& input);

  /// Runs after every forward with (layer, input, output); a defined result replaces the output.
  using ForwardHook = std::function<Tensor(Layer&, const Tensor&, const Tensor&)>;
  void add_forward_hook(ForwardHook hook) { hooks_.push_back(std::move(hook)); }

 protected:
  /// The output after all hooks, for layers that have other forms of forward too.
  Tensor run_hooks(const Tensor& input, Tensor output);
  /// The layer's span in a trace, under its path (a root's: its type), which those forms begin
  /// with.
  trace::Span span() const;

 private:
  std::vector<ForwardHook> hooks_;
};

}  // namespace tutti::nn
