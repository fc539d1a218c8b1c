#include "module.h"

#include "../autograd/grad_mode.h"
#include "../autograd/node.h"
#include "module_path.h"

#include <cxxabi.h>
#include <algorithm>
#include <cstdlib>
#include <set>
#include <typeinfo>
#include <utility>

namespace tutti::nn {
namespace {

// Lists each module once, at its first path.
template <class M>
void visit_modules(M& module, const std::string& prefix, std::set<const Module*>& seen,
                   std::vector<std::pair<std::string, M*>>& found) {
  if (!seen.insert(&module).second) return;
  found.emplace_back(prefix, &module);
  for (const auto& [name, child] : module.children())
    visit_modules<M>(*child, join_path(prefix, name), seen, found);
}

template <class M>
std::vector<std::pair<std::string, M*>> modules_of(M& root) {
  std::vector<std::pair<std::string, M*>> found;
  std::set<const Module*> seen;
  visit_modules(root, "", seen, found);
  return found;
}

void apply_below(Module& module, std::set<const Module*>& seen,
                 const std::function<void(Module&)>& fn) {
  if (!seen.insert(&module).second) return;
  for (const auto& [name, child] : module.children()) apply_below(*child, seen, fn);
  fn(module);
}

}  // namespace

Module::~Module() {
  for (const auto& [name, child] : children_)
    if (child->parent_ == this) child->parent_ = nullptr;
}

// ---- Building.

void Module::check_name(const std::string& name) const {
  if (name.empty() || name.find('.') != std::string::npos)
    fail<ValueError>(
        "{}: expected a name that is not empty and holds no '.', got '{}'; paths are made of names",
        type_name(), name);
  const auto is_taken = [&](const NamedTensors& tensors) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const auto& t) { return t->name == name; });
  };
  const char* taken = is_taken(parameters_) ? "parameter" : is_taken(buffers_) ? "buffer" : nullptr;
  for (const auto& [existing, child] : children_)
    if (existing == name) taken = "child";
  if (taken)
    fail<ValueError>(
        "{}: '{}' is registered already, as a {}; every name can be used once in a module",
        type_name(), name, taken);
}

Tensor& Module::insert_tensor(NamedTensors& into, const std::string& name, Tensor tensor) {
  check_name(name);
  into.push_back(std::make_unique<Named>(Named{name, std::move(tensor)}));
  return into.back()->tensor;
}

RegisteredTensor Module::add_parameter(const std::string& name, Tensor tensor) {
  check_name(name);
  return RegisteredTensor(insert_tensor(parameters_, name, as_parameter(std::move(tensor))));
}

Tensor Module::as_parameter(Tensor tensor) {
  if (tensor.defined())
    autograd::meta_of(tensor.requires_grad_()).parameter_number = ++autograd::last_parameter_number;
  return tensor;
}

RegisteredTensor Module::add_buffer(const std::string& name, Tensor tensor) {
  return RegisteredTensor(insert_tensor(buffers_, name, std::move(tensor)));
}

bool Module::contains(const Module* module) const {
  return this == module || std::any_of(children_.begin(), children_.end(), [&](const auto& child) {
           return child.second->contains(module);
         });
}

void Module::check_child(const std::string& name, const Module* child) const {
  if (!child) fail<ValueError>("{}: child '{}' is a null pointer", type_name(), name);
  if (child->contains(this))
    fail<ValueError>("{}: child '{}' ({}) contains this module; a module cannot own itself",
                     type_name(), name, child->type_name());
}

void Module::insert_child(const std::string& name, std::shared_ptr<Module> child) {
  check_name(name);
  check_child(name, child.get());
  if (!child->parent_) {
    child->parent_ = this;
    child->name_ = name;
  }
  children_.emplace_back(name, std::move(child));
  replacements_.push_back(Replacement::refused);
}

void Module::allow_replacement(const std::string& name, bool needs_layer) {
  replacements_[index_of(name)] = needs_layer ? Replacement::layer : Replacement::any_module;
}

// ---- Reading.

StateDict Module::collect(NamedTensors Module::*kind) const {
  StateDict found;
  std::set<const void*> seen;
  for (const auto& [path, module] : named_modules())
    for (const auto& entry : module->*kind)
      if (entry->tensor.defined() && seen.insert(entry->tensor.id()).second)
        found.emplace_back(join_path(path, entry->name), entry->tensor);
  return found;
}

StateDict Module::named_parameters() const { return collect(&Module::parameters_); }
StateDict Module::named_buffers() const { return collect(&Module::buffers_); }

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> result;
  for (auto& [path, tensor] : named_parameters()) result.push_back(std::move(tensor));
  return result;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  return modules_of<Module>(*this);
}
std::vector<std::pair<std::string, const Module*>> Module::named_modules() const {
  return modules_of<const Module>(*this);
}

std::size_t Module::index_of(const std::string& name) const {
  std::string names;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (children_[i].first == name) return i;
    names += (i ? ", " : "") + children_[i].first;
  }
  fail<ValueError>("{}: expected the name of one of its children ({}), got '{}'", error_name(),
                   names.empty() ? "it has none" : names, name);
}

// Returns the parent of the module at `path`, and the module's index there.
std::pair<const Module*, std::size_t> Module::find_child(const std::string& path) const {
  const std::size_t dot = path.find('.');
  const std::size_t index = index_of(path.substr(0, dot));
  return dot == std::string::npos ? std::pair{this, index}
                                  : children_[index].second->find_child(path.substr(dot + 1));
}

Module& Module::child(const std::string& path) const {
  const auto [parent, index] = find_child(path);
  return *parent->children_[index].second;
}

void Module::throw_other_class(const std::string& path, const Module& found) const {
  fail<ValueError>(
      "{}: child '{}' is a {} and cannot be used as another class; child(path) and "
      "Child::layer() take any",
      error_name(), path, found.type_name());
}

std::string Module::path() const { return !parent_ ? "" : join_path(parent_->path(), name_); }

std::int64_t Module::parameter_count() const {
  std::int64_t count = 0;
  for (const auto& [path, tensor] : named_parameters()) count += tensor.numel();
  return count;
}

std::string Module::type_name() const {
  int status = 0;
  char* demangled = abi::__cxa_demangle(typeid(*this).name(), nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : typeid(*this).name();
  std::free(demangled);
  // The name keeps template arguments and loses namespaces.
  const std::size_t scope = name.rfind("::", name.find('<'));
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

std::string Module::error_name() const {
  const std::string where = path();
  return where.empty() ? type_name() : fmt::format("{} '{}'", type_name(), where);
}

std::string Module::describe() const { return {}; }

void Module::print(const std::string& indent, std::string& text) const {
  text += fmt::format("{}({})", type_name(), describe());
  std::string tensors;
  for (const NamedTensors* kind : {&parameters_, &buffers_})
    for (const auto& entry : *kind)
      if (entry->tensor.defined())
        tensors += fmt::format("{}{} {}", tensors.empty() ? "" : ", ", entry->name,
                               tutti::to_string(entry->tensor.shape()));
  if (!tensors.empty()) text += ": " + tensors;
  text += '\n';
  for (const auto& [name, child] : children_) {
    text += fmt::format("{}  {}: ", indent, name);
    child->print(indent + "  ", text);
  }
}

std::string Module::to_string() const {
  std::string text;
  print("", text);
  return text + fmt::format("{} parameters", parameter_count());
}

// ---- Changing.

void Module::replace_tensor(const Tensor& registered, Tensor replacement) {
  for (const NamedTensors* kind : {&parameters_, &buffers_})
    for (const auto& entry : *kind)
      if (&entry->tensor == &registered) {
        const bool is_computed = replacement.defined() && !replacement.is_leaf();
        if (kind == &parameters_ && !is_computed)
          replacement = as_parameter(std::move(replacement));
        entry->tensor = std::move(replacement);
        return;
      }
  fail<ValueError>("{}: replace_tensor() got a tensor that is no parameter or buffer of it",
                   error_name());
}

std::shared_ptr<Module> Module::replace_child(const std::string& path,
                                              std::shared_ptr<Module> replacement) {
  const auto [found, index] = find_child(path);
  // A child that is not const was reached through this module, which is not const either.
  auto* const parent = const_cast<Module*>(found);
  auto& [name, child] = parent->children_[index];
  parent->check_child(name, replacement.get());
  const Replacement allowed = parent->replacements_[index];
  if (allowed == Replacement::refused)
    fail<ValueError>(
        "{}: child '{}' ({}) cannot be replaced, because a reference to it was given out when it "
        "was added; add it with add_replaceable(), or append it to a Sequential",
        parent->error_name(), name, child->type_name());
  if (allowed == Replacement::layer && !dynamic_cast<Layer*>(replacement.get()))
    fail<ValueError>("{}: expected a Layer in the place of child '{}', got a {}",
                     parent->error_name(), name, replacement->type_name());
  std::shared_ptr<Module> old = std::exchange(child, std::move(replacement));
  if (old != child) parent->forget_parent(*old);
  if (!child->parent_) {
    child->parent_ = parent;
    child->name_ = name;
  }
  return old;
}

// Gives a child that was replaced the name of another place where this module still has it, if
// there is one. Otherwise it has no parent any more.
void Module::forget_parent(Module& old) const {
  if (old.parent_ != this) return;
  old.parent_ = nullptr;
  for (const auto& [name, child] : children_)
    if (child.get() == &old) {
      old.parent_ = this;
      old.name_ = name;
      return;
    }
}

void Module::apply(const std::function<void(Module&)>& fn) {
  std::set<const Module*> seen;
  apply_below(*this, seen, fn);
}

void Module::train(bool on) {
  apply([on](Module& module) {
    module.training_ = on;
    module.changed();
  });
}

void Module::to(std::optional<Device> device, std::optional<DType> dtype,
                std::optional<MemoryFormat> format) {
  if (dtype && !is_floating(*dtype))
    fail<DTypeError>("{}.to: expected a floating dtype, got {}; integer state keeps its own",
                     type_name(), tutti::to_string(*dtype));
  const NoGrad no_grad;
  // All moved tensors are computed first, so that a failure changes nothing.
  std::vector<std::pair<Tensor, Tensor>> moves;
  std::set<const void*> seen;
  for (const auto& [path, module] : named_modules())
    for (const NamedTensors* kind : {&module->parameters_, &module->buffers_})
      for (const auto& entry : *kind) {
        const Tensor& tensor = entry->tensor;
        if (!tensor.defined() || !seen.insert(tensor.id()).second) continue;
        Tensor moved = tensor.detach();
        if (device) moved = moved.to(*device);
        if (dtype && is_floating(tensor.dtype()))
          moved = moved.to(module->own_dtype(tensor, *dtype));
        if (format && (tensor.rank() == 4 || tensor.rank() == 5)) moved = moved.contiguous(*format);
        if (moved.storage() != tensor.storage()) moves.emplace_back(tensor, std::move(moved));
      }
  for (const auto& [tensor, moved] : moves) tensor.set_data(moved);
  apply([](Module& module) { module.changed(); });
}

void Module::zero_grad() {
  for (const Tensor& parameter : parameters()) parameter.set_grad({});
}

// ---- Layer.

Tensor Layer::operator()(const Tensor& input) {
  return run(input, [&] { return checked_forward(input); });
}

Tensor Layer::checked_forward(const Tensor& input) {
  if (has_checked_ || !grad_enabled()) return forward(input);
  const ScopedValue checking(checking_, this);
  Tensor output = forward(input);
  has_checked_ = true;
  return output;
}

void Layer::expect_registered() const {
  if (!checking_ || !grad_enabled() || root() == checking_->root() ||
      root()->serial_ < checking_->serial_ ||
      !std::ranges::any_of(parameters(), &Tensor::requires_grad))
    return;
  fail<Error>(
      "{} runs {}, which was never added to it, so its parameters would be neither trained nor "
      "saved; declare the member as `{}& name = add<{}>(\"name\", ...)`",
      checking_->error_name(), error_name(), root()->type_name(), root()->type_name());
}

void Layer::add_name(Error& error) const {
  const std::string text = error.what();
  const auto modules = named_modules();
  if (std::any_of(modules.begin(), modules.end(), [&](const auto& entry) {
        return text.find(entry.second->error_name()) != std::string::npos;
      }))
    return;
  // The assignment replaces the message of the exception in flight, which keeps its class and what
  // that class adds.
  static_cast<std::runtime_error&>(error) =
      std::runtime_error(fmt::format("{}: {}", error_name(), text));
}

// Opens the layer's span, named by its path, or by its type for a root, and checks that the layer
// is part of the one that runs it.
trace::Span Layer::span() const {
  expect_registered();
  return trace::Span([this] { return path().empty() ? type_name() : path(); });
}

Tensor Layer::run_hooks(const Tensor& input, Tensor output) {
  const ScopedValue nobody(checking_, nullptr);  // Hooks may run layers that are no part of this.
  for (const ForwardHook& hook : hooks_)
    if (Tensor replaced = hook(*this, input, output); replaced.defined())
      output = std::move(replaced);
  return output;
}

Tensor TwoInputLayer::forward(const Tensor&) {
  fail<Error>("{}: expected two inputs, as in layer(x, skip), got one", error_name());
}

}  // namespace tutti::nn
