// record: how an operation becomes differentiable. Compute the output with kernels, then
//
//   return autograd::record("swish", y, {x}, [s, y](const Tensor& g) { return g * (s + y * (1 -
//   s)); });
//
// The closure is all that is saved. It runs without recording. Tensors that must not change before
// backward go into it as `Saved`; the output may go into it only detached (Saved does that), or the
// graph would own itself.
#pragma once

#include "grad_mode.h"
#include "node.h"

#include <initializer_list>
#include <type_traits>

namespace tutti::autograd {

/// A tensor kept for backward: detached, with its version. Reading it after somebody changed the
/// data in place is an Error that names the operation.
class Saved {
 public:
  Saved() = default;  ///< nothing saved
  Saved(const Tensor& tensor);
  const Tensor& get() const;
  operator const Tensor&() const { return get(); }
  explicit operator bool() const { return tensor_.defined(); }

 private:
  Tensor tensor_;
  std::uint64_t version_ = 0;
};

/// True where operations on `tensor` are to be recorded now. Undefined tensors need nothing.
bool needs_grad(const Tensor& tensor);

Tensor record_node(std::string name, Tensor output, const std::vector<Tensor>& inputs,
                   Backward backward);

/// Attaches the graph to `output` where any input needs a gradient, and returns it. `backward` maps
/// the gradient of the output to that of the only input (a Tensor) or of every input (a
/// std::vector<Tensor>, one each, undefined for none). Undefined inputs (an absent bias) are
/// allowed. Gradients must have their input's shape and dtype.
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

/// For a closure whose gradients come in two halves: it returns the first (undefined for what is
/// still to come) and hands `rest` to the engine, which calls it before the next operation's
/// backward, or within that, where it waits for other ranks (compute_deferred_gradients). `rest`
/// returns a gradient for every input again; those given already are not looked at. Convolution
/// does it: the gradient of its input unblocks a SyncBatchNorm, whose all-reduce then hides that of
/// its weight.
void defer_gradients(std::function<std::vector<Tensor>()> rest);

/// Called from a closure that waits for other ranks: does what was deferred, if anything was.
void compute_deferred_gradients();

/// Says that the operation that made `output` calls compute_deferred_gradients(). No effect where
/// it was not recorded.
void mark_waits_for_ranks(const Tensor& output);

/// Sums `x` over the dimensions that broadcasting added or grew, so that it gets `shape`: the
/// gradient of a broadcast.
Tensor sum_to(const Tensor& x, const Shape& shape);

/// The operation whose backward runs now on this thread; empty outside. For error messages.
const std::string& current_operation();

}  // namespace tutti::autograd
