// record() makes an operation differentiable, and Saved is a tensor that it keeps for its backward.
// A Recipe computes such a tensor again from others, so that its memory need not be kept from
// forward to backward. Compute the output with kernels, then record it:
//
//   using autograd::Saved;
//   return autograd::record("swish", y, {x}, [s = Saved(s), y = Saved(y)](const Tensor& g) {
//     return g * (s + y * (1 - s));
//   });
//
// The closure computes the gradient of the inputs from that of the output. It owns everything that
// is saved for backward, and it runs without being recorded itself. Capture tensors as `Saved`: it
// notices changes in place, and it detaches the tensor; otherwise an output would keep its own
// graph alive.
#pragma once

#include "grad_mode.h"
#include "node.h"

#include <type_traits>

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

/// Returns whether the closure that runs now is freed, with what it saved, when it returns: false
/// outside of a backward and in one that retains its graph. A closure may then overwrite a saved
/// tensor that is exclusive to it (Tensor::is_exclusive).
bool frees_saved_tensors();

/// Returns whether operations on `tensor` are to be recorded now; false for an undefined tensor.
bool needs_grad(const Tensor& tensor);

/// Does what record() does, for a closure that is a Backward already.
Tensor record_node(std::string name, Tensor output, const std::vector<Tensor>& inputs,
                   Backward backward);

/// Attaches the graph to `output` if any input needs a gradient, and returns `output`. `backward`
/// maps the gradient of the output to the gradient of the only input (a Tensor) or of all inputs (a
/// std::vector<Tensor> with one entry each, undefined for no gradient). A gradient must have the
/// shape and dtype of its input; that of a float32 input may have 16 bits and is widened, in the
/// best case by the kernel that copies it into a bucket. Inputs may be undefined, such as an absent
/// bias. While a NoGrad exists, nothing is attached; gradcheck() says so if an operation's own
/// NoGrad is the reason.
template <class Closure>
Tensor record(std::string name, Tensor output, const std::vector<Tensor>& inputs,
              Closure backward) {
  if constexpr (std::is_convertible_v<std::invoke_result_t<Closure&, const Tensor&>, Tensor>)
    return record_node(std::move(name), std::move(output), inputs,
                       [backward = std::move(backward)](const Tensor& g) mutable {
                         return std::vector<Tensor>{backward(g)};
                       });
  else return record_node(std::move(name), std::move(output), inputs, std::move(backward));
}

/// Lets a closure return some gradients now and compute the others later. The closure returns an
/// undefined tensor for each deferred gradient and passes `rest`, which returns a gradient for
/// every input again; those that were returned before are ignored. The engine calls `rest` before
/// the next operation's backward, or during it while that waits for other ranks.
///
/// Convolution defers the gradient of its weight: the gradient of its input starts the all-reduce
/// of the SyncBatchNorm before it, and the weight's gradient is computed while that travels.
void defer_gradients(std::function<std::vector<Tensor>()> rest);

/// Computes the deferred gradients, if there are any. The backward of an operation that waits for
/// other ranks calls this before it waits.
void compute_deferred_gradients();

/// Declares that the backward of the operation that computed `output` calls
/// compute_deferred_gradients(), and then a collective of a group, which `group` identifies: the
/// address of ProcessGroup::implementation(). DataParallel then starts no bucket where the order of
/// that collective and of the buckets could differ between ranks. Does nothing if the operation was
/// not recorded.
void mark_waits_for_ranks(const Tensor& output, const void* group);

/// Sums `x` over the dimensions that broadcasting added or enlarged, so that it gets `shape`. This
/// is the gradient of a broadcast.
Tensor sum_to(const Tensor& x, const Shape& shape);

/// Returns the name of the operation whose backward runs on this thread; empty outside of one.
const std::string& current_operation();

}  // namespace tutti::autograd
