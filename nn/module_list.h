// ModuleList: a list of modules that its owner runs as it likes, for models whose number of parts
// is an option. They are named "0", "1", ... as in PyTorch. It shares append() with Sequential.
#pragma once

#include "module.h"

namespace tutti::nn {

/// A module of the class `Base`, Module or Layer, whose children are a list.
template <class Base>
class ModuleSequence : public Base {
 public:
  ModuleSequence() = default;
  /// Adds existing modules: Sequential net{std::make_shared<Linear>(...), ...}.
  ModuleSequence(std::initializer_list<std::shared_ptr<Base>> modules) {
    for (const auto& module : modules) append_module(module);
  }

  /// Makes a T and adds it at the end, named by its index: append<Linear>({.in = 3, .out = 4}).
  /// replace_child() may exchange it, for any module of the class `Base`; a class that keeps the
  /// reference as a member uses add().
  template <class T>
  requires requires { typename T::Options; }
  T& append(const typename T::Options& options) {
    return append_module(std::make_shared<T>(options));
  }
  template <class T, class... Args>
  requires std::is_constructible_v<T, Args...> T& append(Args&&... args) {
    return append_module(std::make_shared<T>(std::forward<Args>(args)...));
  }

 private:
  template <class T>
  T& append_module(const std::shared_ptr<T>& module) {
    const std::string name = std::to_string(this->children().size());
    T& added = this->add_child(name, module);
    this->allow_replacement(name, std::is_same_v<Base, Layer>);
    return added;
  }
};

/// A list of modules. It has no forward of its own; Sequential is the list whose layers run one
/// after the other.
class ModuleList : public ModuleSequence<Module> {
 public:
  using ModuleSequence::ModuleSequence;

  std::int64_t size() const { return static_cast<std::int64_t>(children().size()); }
  /// Returns a member as a layer. ValueError if there is no such member or if it is not a Layer;
  /// child<T>("0") returns it as another class.
  Layer& operator[](std::int64_t index) const { return child<Layer>(std::to_string(index)); }
};

}  // namespace tutti::nn
