// What a device must be able to do for an optimizer: one fused pass over each parameter, for a
// whole list of parameters in one call (a GPU does the list in one launch). All tensors of one item
// are dense with equal strides, so that they are walked as flat memory. Norms stay on the device:
// no step needs a value on the host.
#pragma once

#include "../core/tensor.h"

#include <cstdint>
#include <span>

namespace tutti::kernels {

/// One parameter and what belongs to it. `gradient` has the parameter's dtype, the state
/// accumulate_dtype of it.
struct ParameterUpdate {
  Tensor parameter, gradient;
  Tensor first, second;  ///< momentum; or Adam's two moments; undefined where the method has none
  std::int64_t step =
      1;  ///< how many updates this parameter had, this one and skipped ones included
  /// Loss scaling's verdict (optim::GradScaler), which stays on the device: float32 of one element,
  /// or undefined. Where `found_inf` is not 0 this update changes nothing and adds 1 to `skipped`.
  /// The number that counts, for Adam's bias corrections and for what a first update does
  /// differently, is step - skipped.
  Tensor found_inf, skipped;
};

struct SgdStep {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
};

struct AdamStep {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled;  ///< AdamW: the decay shrinks the parameter instead of joining the gradient
};

struct LarsStep {
  double lr, momentum, weight_decay, trust_coefficient, eps;
  bool adapt;  ///< false: the local rate is 1
};

/// A step's numbers as a graph's replays find them, on the device, instead of those given at the
/// capture: those of the step in the order of its members, a flag as 0 or 1, but Adam's
/// `decoupled`; then `step` of each update. Null: as they are given.
using ReplayScalars = const double*;

struct OptimizerSteps {
  /// `first`: the momentum buffer, undefined where momentum is 0. In a first update it becomes the
  /// gradient, undampened.
  void (*sgd)(const SgdStep& step, std::span<const ParameterUpdate> updates, ReplayScalars live);
  void (*adam)(const AdamStep& step, std::span<const ParameterUpdate> updates, ReplayScalars live);
  /// `squares`: sums of squares of the parameters, then of the gradients; float64, 2 *
  /// updates.size() elements.
  void (*lars)(const LarsStep& step, std::span<const ParameterUpdate> updates,
               const Tensor& squares, ReplayScalars live);
  /// out[i] = sum of x^2 over tensors[i], taken in float64; does not depend on the thread count.
  void (*sums_of_squares)(std::span<const Tensor> tensors, const Tensor& out);
  /// norm = sqrt(sum of `squares`); multiplies the tensors by max_norm / (norm + 1e-6) where that
  /// is below 1.
  void (*clip)(std::span<const Tensor> tensors, const Tensor& squares, double max_norm,
               const Tensor& norm);
  /// Divides the tensors by `scale` and sets `found_inf` to 1 where an element is not finite, else
  /// leaves it. Both float32 of one element.
  void (*unscale)(std::span<const Tensor> tensors, const Tensor& scale, const Tensor& found_inf);
};

namespace cpu {
const OptimizerSteps& optimizer();
}
namespace cuda {
const OptimizerSteps& optimizer();
}
inline const OptimizerSteps& optimizer(Device device) {
  return device.is_cpu() ? cpu::optimizer() : cuda::optimizer();
}

}  // namespace tutti::kernels
