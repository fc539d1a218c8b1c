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
  /// The number of this update of the parameter, counted from 1. It counts skipped updates too.
  std::int64_t step = 1;
  /// The result of loss scaling's check (optim::GradScaler), which stays on the device: float32 of
  /// one element each, or undefined. Where `found_inf` is not 0, the kernel adds 1 to `skipped` and
  /// changes nothing else. Formulas that depend on the step number (Adam's bias corrections, SGD's
  /// first momentum) use step - skipped.
  Tensor found_inf = {}, skipped = {};
  /// The kernel writes the new value here, too, rounded to this tensor's 16-bit dtype. It is
  /// defined for some float32 parameters on CUDA only (rounded_weights.h) and has the parameter's
  /// strides.
  Tensor rounded = {};
};

struct SgdStep {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
};

struct AdamStep {
  double lr, beta1, beta2, eps, weight_decay;
  /// AMSGrad: the step is divided by the largest second moment so far, which is the third state.
  bool amsgrad;
  /// AdamW: the weight decay shrinks the parameter instead of joining the gradient.
  bool decoupled;
};

struct LarsStep {
  double lr, momentum, weight_decay, trust_coefficient, eps;
  /// If it is false, the local rate is 1.
  bool adapt;
};

/// The options and step numbers of a captured step, which the host refreshes on the device before
/// each replay of the graph. First come the members of the ...Step struct in order, a flag as 0 or
/// 1, without Adam's `decoupled`; then `FusedUpdate::step` of each update. Null outside a capture:
/// the kernel then uses the values in its arguments.
using ReplayScalars = const double*;

struct Optimizer {
  void (*sgd)(const SgdStep& step, std::span<const FusedUpdate> updates, ReplayScalars scalars);
  void (*adam)(const AdamStep& step, std::span<const FusedUpdate> updates, ReplayScalars scalars);
  /// `squares` holds the sums of squares of all parameters, then of all gradients: float64 of
  /// 2 * updates.size() elements.
  void (*lars)(const LarsStep& step, std::span<const FusedUpdate> updates, const Tensor& squares,
               ReplayScalars scalars);
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
