// The kernels of the optimizers: fused updates of whole lists of parameters, sums of squares,
// gradient clipping, scaling and unscaling. A GPU takes a list in one launch. Every kernel sees
// tensors as flat memory, so all tensors of one parameter are dense with equal strides. Norms stay
// on the device, so that no step waits for the host. The formulas stand in optimizer_math.h.
#pragma once

#include "../core/tensor.h"

#include <cstdint>
#include <span>
#include <vector>

namespace tutti::kernels {

/// The tensors and numbers of one parameter in one optimizer step.
struct FusedUpdate {
  /// The kernel writes the parameter in place. The gradient has the parameter's dtype.
  Tensor parameter, gradient;
  /// The state tensors, in accumulate_dtype of the parameter's dtype: the momentum of SGD and LARS
  /// (none for SGD without momentum); the two moments of Adam, and with amsgrad the largest
  /// second moment. The kernel writes them in place.
  std::vector<Tensor> states = {};
  /// The number of updates of the parameter so far, int64 of one element. The kernel adds 1 to it.
  /// Formulas that depend on the number of this update (Adam's bias corrections, SGD's first
  /// momentum) count it from 1.
  Tensor steps;
  /// The result of loss scaling's check (optim::GradScaler), which stays on the device: float32 of
  /// one element, or undefined. Where it is not 0, the kernel changes nothing.
  Tensor found_inf = {};
  /// The kernel writes the new value here, too, rounded to this tensor's 16-bit dtype. It is
  /// defined for some float32 parameters on CUDA only (rounded_weights.h) and has the parameter's
  /// strides.
  Tensor rounded = {};
};

/// The options of a step. A number is the address of a float64 on the parameters' device, so that
/// a captured graph reads the value of each replay; a flag is frozen in the graph.
struct SgdStep {
  const double *lr, *momentum, *dampening, *weight_decay;
  bool nesterov;
};

/// With three states (AMSGrad) the step is divided by the largest second moment so far.
struct AdamStep {
  const double *lr, *beta1, *beta2, *eps, *weight_decay;
  /// AdamW: the weight decay shrinks the parameter instead of joining the gradient.
  bool decoupled;
};

struct LarsStep {
  const double *lr, *momentum, *weight_decay, *trust_coefficient, *eps;
  /// If it is false, the local rate is 1.
  bool adapt;
};

struct Optimizer {
  void (*sgd)(const SgdStep& step, std::span<const FusedUpdate> updates);
  void (*adam)(const AdamStep& step, std::span<const FusedUpdate> updates);
  /// `squares` holds the sums of squares of all parameters, then of all gradients: float64 of
  /// 2 * updates.size() elements.
  void (*lars)(const LarsStep& step, std::span<const FusedUpdate> updates, const Tensor& squares);
  /// Sets out[i] to the sum of x^2 over tensors[i], computed in float64. The result does not
  /// depend on the number of threads.
  void (*sums_of_squares)(std::span<const Tensor> tensors, const Tensor& out);
  /// Sets `norm` to the square root of the sum of `squares`, and multiplies the tensors by
  /// max_norm / (norm + 1e-6) where that is below 1. Both are float64.
  void (*clip)(std::span<const Tensor> tensors, const Tensor& squares, double max_norm,
               const Tensor& norm);
  /// Limits every element to [-max_value, max_value]. NaN stays NaN.
  void (*clip_values)(std::span<const Tensor> tensors, double max_value);
  /// Divides the tensors by `scale`, and sets `found_inf` to 1 where an element is infinite or
  /// NaN; otherwise `found_inf` keeps its value. Both are float32 of one element.
  void (*unscale)(std::span<const Tensor> tensors, const Tensor& scale, const Tensor& found_inf);
  /// Computes to[i] = factor * from[i]. The two may be one tensor. from[i] has the dtype of to[i],
  /// or a 16-bit dtype where to[i] is float32; it is then widened before it is scaled.
  void (*scale_into)(std::span<const Tensor> from, std::span<const Tensor> to, double factor);
};

}  // namespace tutti::kernels
