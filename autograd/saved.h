// Saved is a tensor that a recorded operation keeps for its backward. A Recipe computes such a
// tensor again from others, so that its memory need not be kept from forward to backward. record.h
// records the operations, and the engine runs them.
#pragma once

#include "../core/tensor.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tutti::autograd {

class Recipe;
struct RecipeUse;

/// Saved is a tensor kept for backward, detached, with its version. Reading it after the data was
/// changed in place throws an Error that names the operation.
///
/// A tensor with a Recipe is not kept. Where nothing else holds its memory any longer, reading it
/// computes the numbers again: once in each backward, for all who saved it. They are freed when the
/// last of these has been freed by backward, at the latest at the end of that backward.
class Saved {
 public:
  /// Saves nothing.
  Saved() = default;
  Saved(const Tensor& tensor);
  Tensor get() const;
  operator Tensor() const { return get(); }
  /// Returns the tensor and lets go of it: for the last use, in a backward that frees it.
  Tensor take();
  explicit operator bool() const { return tensor_.defined() || use_; }

 private:
  friend class Recipe;
  Tensor tensor_;  // undefined if there is a recipe
  std::shared_ptr<RecipeUse> use_;
  std::uint64_t version_ = 0;
};

/// Computes a tensor again from others. It must write the same bits as the first time into a new
/// tensor of the same layout, without a history.
using Compute = std::function<Tensor(const std::vector<Tensor>& inputs)>;

/// Gives `output` a recipe: whoever saves it from now on, or a view of it, keeps no memory, but
/// what `inputs` keep. `output` is a dense tensor that fills its storage and that an operation,
/// which `name` names in errors, has just computed. That operation's backward closure must own the
/// result, or the recipe is lost.
///
/// Returns null, and changes nothing, for an output that ends a chain of many recipes of which each
/// reads the one before it, because all of them would be computed, and held, at the same time.
std::shared_ptr<Recipe> set_recipe(const Tensor& output, std::string name,
                                   const std::vector<Saved>& inputs, Compute compute);

}  // namespace tutti::autograd
