// Sequential: layers one after the other, named "0", "1", ... as in PyTorch.
#pragma once

#include "module.h"

namespace tutti::nn {

class Sequential : public Layer {
 public:
  Sequential() = default;
  /// Sequential net{std::make_shared<Linear>(...), std::make_shared<ReLU>()};
  Sequential(std::initializer_list<std::shared_ptr<Layer>> layers);

  using Module::add;  // under a name of one's own; runs in its turn like the others
  /// Makes a T and adds it at the end, under its index: append<Linear>({.in = 3, .out = 4}).
  template <class T>
  requires requires { typename T::Options; }
  T& append(const typename T::Options& options) { return add<T>(next_name(), options); }
  template <class T, class... Args>
  requires std::is_constructible_v<T, Args...> T& append(Args&&... args) {
    return add<T>(next_name(), std::forward<Args>(args)...);
  }

  /// Each layer on the output of the one before; the input itself where there are none. Error where
  /// a child is no Layer.
  Tensor forward(const Tensor& input) override;

 private:
  std::string next_name() const { return std::to_string(children().size()); }
};

}  // namespace tutti::nn
