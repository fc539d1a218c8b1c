// Sequential: a list of layers, each of which runs on the output of the one before. They are named
// "0", "1", ... as in PyTorch.
#pragma once

#include "module.h"

namespace tutti::nn {

/// A layer that runs its children one after the other.
class Sequential : public Layer {
 public:
  Sequential() = default;
  /// Adds existing layers: Sequential net{std::make_shared<Linear>(...), ...}.
  Sequential(std::initializer_list<std::shared_ptr<Layer>> layers);

  using Module::add;  // A layer with a name of its own runs in its turn like the others.
  /// Makes a T and adds it at the end, named by its index: append<Linear>({.in = 3, .out = 4}).
  /// replace_child() may exchange it; a class that keeps the reference as a member uses add().
  template <class T>
  requires requires { typename T::Options; }
  T& append(const typename T::Options& options) {
    return append_layer(std::make_shared<T>(options));
  }
  template <class T, class... Args>
  requires std::is_constructible_v<T, Args...> T& append(Args&&... args) {
    return append_layer(std::make_shared<T>(std::forward<Args>(args)...));
  }

  /// Runs all layers in order. Without layers it returns the input. Error if a child is not a
  /// Layer.
  Tensor forward(const Tensor& input) override;
  /// Returns every pair of neighbours. A derived class returns none, because its forward() may be
  /// another one; if it is not, the class overrides this function and returns neighbours().
  std::vector<ConsecutiveChildren> consecutive_children() const override;

 protected:
  std::vector<ConsecutiveChildren> neighbours() const;

 private:
  template <class T>
  T& append_layer(const std::shared_ptr<T>& layer) {
    const std::string name = std::to_string(children().size());
    T& added = add_child(name, layer);
    allow_replacement(name, true);
    return added;
  }
};

}  // namespace tutti::nn
