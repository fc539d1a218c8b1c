// Sequential: a list of layers, each of which runs on the output of the one before. They are named
// "0", "1", ... as in PyTorch.
#pragma once

#include "module_list.h"

namespace tutti::nn {

/// A layer that runs its children one after the other.
class Sequential : public ModuleSequence<Layer> {
 public:
  using Module::add;  // A layer with a name of its own runs in its turn like the others.
  using ModuleSequence::ModuleSequence;

  /// Runs all layers in order. Without layers it returns the input. Error if a child is not a
  /// Layer.
  Tensor forward(const Tensor& input) override;
  /// Returns every pair of neighbours. A derived class returns none, because its forward() may be
  /// another one; if it is not, the class overrides this function and returns neighbours().
  std::vector<ConsecutiveChildren> consecutive_children() const override;

 protected:
  std::vector<ConsecutiveChildren> neighbours() const;
};

}  // namespace tutti::nn
