// Module: a tree of named child modules, parameters and buffers, which it owns. The add functions
// return references, so that a model is a plain struct of references. Layer is a module that
// computes one tensor from one tensor. Child is a reference to a layer that may be replaced.
#pragma once

#include "../core/create.h"
#include "../core/error.h"
#include "../core/serial.h"
#include "../core/state_dict.h"
#include "../core/trace.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tutti::nn {

/// The names that a load did not find in the state, those that the module does not have, and those
/// whose shapes differ. All are empty after a strict load.
struct LoadReport {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::vector<std::string> misfits;
};

/// Returns `state` without the prefixes that PyTorch's wrappers put before every name ("module.",
/// "_orig_mod.", "model."), unless a name of `own` begins with them, too.
StateDict without_wrapper_prefix(StateDict state, const StateDict& own);

class Layer;
template <class T>
class Child;

/// A tensor that a module has registered. It converts to a constant reference, `const Tensor&`,
/// which copy_() under NoGrad changes, and to nothing that could be assigned: a `Tensor` of one's
/// own that is assigned later would not be the one that is trained and saved.
class RegisteredTensor {
 public:
  explicit RegisteredTensor(const Tensor& tensor) : tensor_(tensor) {}
  operator const Tensor&() const { return tensor_; }
  operator Tensor() const = delete;  // keep it as const Tensor&

 private:
  const Tensor& tensor_;
};

/// A named part of a model: a tree of modules with parameters and buffers.
class Module {
 public:
  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // ---- Building. Each function throws ValueError if the name is empty, contains a '.', or is
  // already used in this module.
  /// Makes a T and adds it as a child: add<Conv2d>("conv", {.in = 3, .out = 8}) or
  /// add<Block>("block", 64). Returns the child.
  template <class T>
  requires requires { typename T::Options; }
  T& add(const std::string& name, const typename T::Options& options) {
    return add_child(name, std::make_shared<T>(options));
  }
  template <class T, class... Args>
  requires std::is_constructible_v<T, Args...> T& add(const std::string& name, Args&&... args) {
    return add_child(name, std::make_shared<T>(std::forward<Args>(args)...));
  }
  /// Adds an existing module. The same module may be added under several names (shared weights).
  /// ValueError if it is null or contains this module.
  template <class T>
  T& add_child(const std::string& name, const std::shared_ptr<T>& child) {
    insert_child(name, child);
    return *child;
  }
  /// Makes a T and adds it as a child that replace_child() may exchange for another Layer. The
  /// module keeps the returned Child as a member in place of a reference.
  template <class T>
  requires requires { typename T::Options; }
  Child<T> add_replaceable(const std::string& name, const typename T::Options& options) {
    return own_replaceable<T>(name, std::make_shared<T>(options));
  }
  template <class T, class... Args>
  requires std::is_constructible_v<T, Args...> Child<T> add_replaceable(const std::string& name,
                                                                        Args&&... args) {
    return own_replaceable<T>(name, std::make_shared<T>(std::forward<Args>(args)...));
  }
  /// Adds a tensor that is trained: it requires a gradient from now on. An undefined tensor stands
  /// for a parameter that this module does not have, such as an absent bias. Keep it as a member
  /// `const Tensor&`: copy_() under NoGrad changes the numbers, and replace_tensor() exchanges the
  /// tensor.
  RegisteredTensor add_parameter(const std::string& name, Tensor tensor);
  /// Adds a tensor that is saved but not trained.
  RegisteredTensor add_buffer(const std::string& name, Tensor tensor);

  // ---- Reading. Names are paths, such as "layer1.0.bn1.weight". Shared tensors and modules are
  // listed once, at their first path.
  StateDict named_parameters() const;
  StateDict named_buffers() const;
  std::vector<Tensor> parameters() const;
  using Children = std::vector<std::pair<std::string, std::shared_ptr<Module>>>;
  /// Returns the direct children, in the order in which they were added.
  const Children& children() const { return children_; }
  /// A direct child and the one that runs on its output, by name.
  struct ConsecutiveChildren {
    std::string first, second;
  };
  /// Returns the pairs of direct children of which forward() calls each exactly once, the second on
  /// the output of the first, which nothing else reads. fold_batch_norm() looks for its layers in
  /// these pairs, so a module that has such pairs overrides this function.
  virtual std::vector<ConsecutiveChildren> consecutive_children() const { return {}; }
  /// Returns this module (under the name "") and every module below it, depth first, parents before
  /// children.
  std::vector<std::pair<std::string, Module*>> named_modules();
  std::vector<std::pair<std::string, const Module*>> named_modules() const;
  /// Returns the module at a path below this one, such as "layer1.0.conv1". ValueError, which lists
  /// the children that exist, if there is none.
  Module& child(const std::string& path) const;
  /// The same as a T. ValueError if the module is of another class.
  template <class T>
  T& child(const std::string& path) const {
    Module& found = child(path);
    if (auto* const typed = dynamic_cast<T*>(&found)) return *typed;
    throw_other_class(path, found);
  }
  /// Returns the path from the root of the tree that this module was first added to, such as
  /// "layer1.0.bn1". A root returns "".
  std::string path() const;
  /// Returns the number of elements of all parameters.
  std::int64_t parameter_count() const;
  /// Returns the name of the class without its namespace, such as "Conv2d".
  virtual std::string type_name() const;
  /// Returns the name by which errors call this module: "Conv2d 'layer1.0.conv1'", or the class
  /// alone, "Conv2d", for a module that is part of no other.
  virtual std::string error_name() const;
  /// Returns the options, as in "3, 64, kernel=3". The default is an empty string.
  virtual std::string describe() const;
  /// Returns the tree with options, shapes and parameter count, one module on a line.
  std::string to_string() const;

  // ---- Changing.
  /// Puts `replacement` in the place of the module at a path below this one, under the same name,
  /// and returns the old one; references to it are valid while it lives. Only children that nobody
  /// holds a reference to can be replaced: those that add_replaceable() made, and those appended to
  /// a Sequential or a ModuleList. The replacement keeps its device, dtype and training flag. Make
  /// the optimizer and DataParallel afterwards, since they keep the old parameters. ValueError, and
  /// no change, if there is no such child, if it cannot be replaced, if the replacement is null or
  /// contains the parent, or if the place needs a Layer and the replacement is none.
  std::shared_ptr<Module> replace_child(const std::string& path,
                                        std::shared_ptr<Module> replacement);
  /// Puts another tensor in the place of `registered`, which is a parameter or buffer of this
  /// module: that of another layer, so that both are one, or an undefined one for none. A parameter
  /// requires a gradient from then on, unless an operation has computed it, to which its gradient
  /// then flows. Make the optimizer and DataParallel afterwards. ValueError
  /// for a tensor that is not registered here.
  void replace_tensor(const Tensor& registered, Tensor replacement);
  /// Calls `fn` for every module of the tree, children before parents.
  void apply(const std::function<void(Module&)>& fn);
  /// Switches every module of the tree to training, or to evaluation with eval().
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }
  /// Moves parameters and buffers in place: other handles on them (an optimizer's) stay valid, and
  /// the gradients of the tensors that moved are dropped. Integer buffers keep their dtype.
  /// `format` applies to tensors of rank 4 and 5. DTypeError for a dtype that is not floating,
  /// DeviceError for a device that does not exist; nothing changes then.
  void to(std::optional<Device> device, std::optional<DType> dtype = {},
          std::optional<MemoryFormat> format = {});
  void to(DType dtype) { to(std::nullopt, dtype); }
  void to(Device device, MemoryFormat format) { to(device, std::nullopt, format); }
  void to(MemoryFormat format) { to(std::nullopt, std::nullopt, format); }
  /// Clears the gradients of all parameters.
  void zero_grad();

  // ---- Saving and loading, under the names that PyTorch uses.
  /// Returns parameters and buffers, detached, which share their storage with the module. A shared
  /// tensor is listed under each of its paths.
  StateDict state_dict() const;
  /// Copies the values of `state`, without_wrapper_prefix(), into the module and converts dtypes. A
  /// num_batches_tracked that the state lacks, as that of old files, stays as it is.
  /// CheckpointError, and no change, if a shape differs, a name occurs twice, a tensor that stands
  /// under two names has two values or, if `strict`, a name is missing or unexpected; the message
  /// lists the first ten of each kind, and counts the others.
  LoadReport load_state_dict(const StateDict& state, bool strict = true) {
    return load(state, strict ? Loading::strict : Loading::of_some_names);
  }
  /// Copies those values whose names and shapes the module has, such as all but another head, and
  /// returns the other names.
  LoadReport load_fitting(const StateDict& state) { return load(state, Loading::fitting); }

 protected:
  /// Lets replace_child() exchange a child, which from then on is reached through children() or a
  /// Child only. `needs_layer`: the replacement must be a Layer.
  void allow_replacement(const std::string& name, bool needs_layer);
  /// Returns the dtype that `own`, a floating tensor of this module, takes when the module is moved
  /// to `requested`. Normalisation layers keep float32.
  virtual DType own_dtype(const Tensor& /*own*/, DType requested) const { return requested; }
  /// Runs after train(), to() and load_state_dict(). Modules that keep derived state override it.
  virtual void changed() {}

 private:
  template <class T>
  friend class Child;
  friend class Layer;
  enum class Replacement { refused, any_module, layer };
  enum class Loading { strict, of_some_names, fitting };
  struct Named {
    std::string name;
    Tensor tensor;
  };
  // unique_ptr keeps returned references valid while more tensors are added.
  using NamedTensors = std::vector<std::unique_ptr<Named>>;

  LoadReport load(const StateDict& loaded, Loading loading);
  Tensor& insert_tensor(NamedTensors& into, const std::string& name, Tensor tensor);
  void insert_child(const std::string& name, std::shared_ptr<Module> child);
  template <class T>
  Child<T> own_replaceable(const std::string& name, std::shared_ptr<T> child);
  static Tensor as_parameter(Tensor tensor);
  void check_name(const std::string& name) const;
  void check_child(const std::string& name, const Module* child) const;
  std::size_t index_of(const std::string& name) const;
  std::pair<const Module*, std::size_t> find_child(const std::string& path) const;
  void forget_parent(Module& old) const;
  [[noreturn]] void throw_other_class(const std::string& path, const Module& found) const;
  bool contains(const Module* module) const;
  const Module* root() const { return parent_ ? parent_->root() : this; }
  StateDict collect(NamedTensors Module::*kind) const;
  void collect_state(const std::string& prefix, StateDict& state) const;
  void print(const std::string& indent, std::string& text) const;

  const std::uint64_t serial_ = next_serial();
  NamedTensors parameters_, buffers_;
  Children children_;                      // No child is ever removed, so indices stay valid.
  std::vector<Replacement> replacements_;  // What may take the place of each child.
  // The module that this one was first added to; null after that module's destruction.
  const Module* parent_ = nullptr;
  std::string name_;
  bool training_ = true;
};

/// A module that computes one tensor from one tensor.
class Layer : public Module {
 public:
  virtual Tensor forward(const Tensor& input) = 0;
  /// Calls forward(), then the hooks. An Error that leaves them keeps its class, and its message
  /// begins with the error_name() of the innermost layer in which it arose. The first call that
  /// records gradients throws an Error if forward() runs a layer with trained parameters that is
  /// part of another tree and was made after this one: a member that was never added.
  Tensor operator()(const Tensor& input);

  /// Adds a function that runs after every forward with (layer, input, output). A defined result
  /// replaces the output.
  using ForwardHook = std::function<Tensor(Layer&, const Tensor&, const Tensor&)>;
  void add_forward_hook(ForwardHook hook) { hooks_.push_back(std::move(hook)); }
  bool has_forward_hooks() const { return !hooks_.empty(); }

 protected:
  /// Runs compute() as operator() runs forward(), for other forms of forward: in the layer's span
  /// of a trace, with the hooks, which get `input` and the output, and with error_name() in front
  /// of the message of an Error that names neither this layer nor one below it.
  template <class Function>
  Tensor run(const Tensor& input, const Function& compute) {
    const trace::Span here = span();
    try {
      return run_hooks(input, compute());
    } catch (Error& error) {
      add_name(error);
      throw;
    }
  }

 private:
  Tensor run_hooks(const Tensor& input, Tensor output);
  trace::Span span() const;
  void add_name(Error& error) const;
  Tensor checked_forward(const Tensor& input);
  void expect_registered() const;

  std::vector<ForwardHook> hooks_;
  std::atomic<bool> has_checked_ = false;  // whether its forward has run registered layers only
  // The thread's layer that checks which layers its forward runs; null if there is none.
  inline static constinit thread_local const Layer* checking_ = nullptr;
};

/// The base of the layers that keep their options: Dropout is a LayerWith<DropoutOptions>.
template <class OptionsType>
class LayerWith : public Layer {
 public:
  using Options = OptionsType;
  const Options& options() const { return options_; }

 protected:
  explicit LayerWith(Options options) : options_(std::move(options)) {}

  Options options_;
};

/// A module that computes one tensor from two, such as a block of a decoder from x and a skip
/// connection. It has what a Layer has: hooks, which get the first input, its span in a trace, and
/// its name in errors. Error where it is run on one tensor, as a Sequential does.
class TwoInputLayer : public Layer {
 public:
  virtual Tensor forward(const Tensor& x, const Tensor& other) = 0;
  Tensor operator()(const Tensor& x, const Tensor& other) {
    return run(x, [&] { return forward(x, other); });
  }

 private:
  Tensor forward(const Tensor& input) final;
};

/// A pointer to the child of a module that follows replace_child(). The child is a T until it is
/// replaced, and may be any Layer afterwards. A module keeps it as a member:
///
///   nn::Child<nn::Linear> fc = add_replaceable<nn::Linear>("fc", {.in = 512, .out = 10});
template <class T>
class Child {
 public:
  /// A null pointer: the module has no such child.
  Child() = default;
  explicit operator bool() const { return owner_ != nullptr; }
  /// Runs the layer that is the child now.
  Tensor operator()(const Tensor& input) const { return layer()(input); }
  Layer& layer() const { return static_cast<Layer&>(module()); }
  /// Access the child as a T. ValueError if it was replaced by a layer of another class.
  T& operator*() const {
    if (auto* const typed = dynamic_cast<T*>(&module())) return *typed;
    owner_->throw_other_class(owner_->children_[index_].first, module());
  }
  T* operator->() const { return &**this; }

 private:
  friend class Module;
  Child(const Module& owner, std::size_t index) : owner_(&owner), index_(index) {}
  Module& module() const { return *owner_->children_[index_].second; }

  const Module* owner_ = nullptr;
  std::size_t index_ = 0;
};

template <class T>
Child<T> Module::own_replaceable(const std::string& name, std::shared_ptr<T> child) {
  static_assert(std::is_base_of_v<Layer, T>, "a replaceable child is a Layer");
  insert_child(name, std::move(child));
  allow_replacement(name, true);
  return {*this, children_.size() - 1};
}

}  // namespace tutti::nn
