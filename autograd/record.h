// record() makes an operation differentiable. Compute the output with kernels, then record it:
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
#include "saved.h"

#include <initializer_list>
#include <type_traits>

namespace tutti::autograd {

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
/// compute_deferred_gradients(). Does nothing if the operation was not recorded.
void mark_waits_for_ranks(const Tensor& output);

/// Declares that the backward of the operation that computed `output` calls take_second_part() and
/// adds what it returns, rounded to the dtype, to its gradient. The kernel that reads the gradient
/// of two consumers can add them where it has them in registers. Does nothing if the operation was
/// not recorded.
void mark_takes_two_parts(const Tensor& output);

/// Returns the second part of the gradient of the operation whose backward runs, of the same
/// strides as the first; undefined if the gradient came in one part.
Tensor take_second_part();

/// Sums `x` over the dimensions that broadcasting added or enlarged, so that it gets `shape`. This
/// is the gradient of a broadcast.
Tensor sum_to(const Tensor& x, const Shape& shape);

/// Returns the name of the operation whose backward runs on this thread; empty outside of one.
const std::string& current_operation();

}  // namespace tutti::autograd
