// The kernels of the optimizers: fused updates of whole lists of parameters, sums of squares,
// gradient clipping, scaling and unscaling. A GPU takes a list in one launch. Every kernel sees
// tensors as flat memory, so all tensors of one parameter are dense with equal strides. Norms stay
// on the device, so that no step waits for the host.
#pragma once

#include "../core/host_device.h"
#include "../core/tensor.h"

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::kernels {

/// The tensors and numbers of one parameter in one optimizer step.
struct FusedUpdate {
  /// The kernel writes the parameter in place. The gradient has the parameter's dtype.
  Tensor parameter, gradient;
  /// The state tensors, in accumulate_dtype of the parameter's dtype: the momentum of SGD and LARS
  /// (none for SGD without momentum); the two moments of Adam. The kernel writes them in place.
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

// ---- The formulas for one element, shared by the CPU and the CUDA kernels. Each update struct
// holds a step's factors in the type C that elements are computed in.

/// SGD. The first update stores the whole gradient in the momentum buffer. Nesterov's variant
/// moves along gradient + momentum * buffer.
template <class C>
struct SgdUpdate {
  C lr, decay, keep, take, along_gradient, along_buffer;

  /// `step` is the number of this update of the parameter, counted from 1.
  static TUTTI_HOST_DEVICE SgdUpdate of(const SgdStep& s, double step) {
    return {C(*s.lr),
            C(*s.weight_decay),
            step == 1 ? C(0) : C(*s.momentum),
            step == 1 ? C(1) : C(1 - *s.dampening),
            s.nesterov ? C(1) : C(0),
            s.nesterov ? C(*s.momentum) : C(1)};
  }
  /// Returns the new value of parameter p with gradient g, without momentum.
  TUTTI_HOST_DEVICE C updated(C p, C g) const { return p - lr * (g + decay * p); }
  /// Returns the new value of p and updates its momentum buffer.
  TUTTI_HOST_DEVICE C updated(C p, C g, C& momentum) const {
    const C gradient = g + decay * p;
    const C buffer = keep * momentum + take * gradient;
    momentum = buffer;
    return p - lr * (along_gradient * gradient + along_buffer * buffer);
  }
};

/// Adam and AdamW.
template <class C>
struct AdamUpdate {
  C beta1, take1, beta2, take2, eps, decay, shrink, rate, root;

  static TUTTI_HOST_DEVICE AdamUpdate of(const AdamStep& s, double step) {
    const double correction1 = 1 - std::pow(*s.beta1, step);
    const double correction2 = 1 - std::pow(*s.beta2, step);
    return {C(*s.beta1),
            C(1 - *s.beta1),
            C(*s.beta2),
            C(1 - *s.beta2),
            C(*s.eps),
            s.decoupled ? C(0) : C(*s.weight_decay),
            s.decoupled ? C(1 - *s.lr * *s.weight_decay) : C(1),
            C(*s.lr / correction1),
            C(1 / std::sqrt(correction2))};
  }
  TUTTI_HOST_DEVICE C updated(C p, C g, C& m, C& v) const {
    const C gradient = g + decay * p;
    m = beta1 * m + take1 * gradient;
    v = beta2 * v + take2 * gradient * gradient;
    return shrink * p - rate * m / (std::sqrt(v) * root + eps);
  }
};

/// LARS.
template <class C>
struct LarsUpdate {
  C momentum, decay, rate;

  /// The arguments are the sums of squares of the parameter and of its gradient.
  static TUTTI_HOST_DEVICE LarsUpdate of(const LarsStep& s, double parameter_squares,
                                         double gradient_squares) {
    const double weight = std::sqrt(parameter_squares), slope = std::sqrt(gradient_squares);
    const bool adapts = s.adapt && weight > 0 && slope > 0;
    const double local =
        adapts ? *s.trust_coefficient * weight / (slope + *s.weight_decay * weight + *s.eps) : 1;
    return {C(*s.momentum), C(*s.weight_decay), C(*s.lr * local)};
  }
  TUTTI_HOST_DEVICE C updated(C p, C g, C& m) const {
    m = momentum * m + rate * (g + decay * p);
    return p - m;
  }
};

/// Returns the factor that scales gradients of this norm to `max_norm`. The caller ignores a factor
/// of 1 or more.
TUTTI_HOST_DEVICE inline double clip_factor(double max_norm, double norm) {
  return max_norm / (norm + 1e-6);
}

// ---- The table of kernels.

struct Optimizer {
  void (*sgd)(const SgdStep& step, std::span<const FusedUpdate> updates);
  void (*adam)(const AdamStep& step, std::span<const FusedUpdate> updates);
  /// `squares` holds the sums of squares of all parameters, then of all gradients: float64 of
  /// 2 * updates.size() elements.
  void (*lars)(const LarsStep& step, std::span<const FusedUpdate> updates, const Tensor& squares);
  /// Sets out[i] to the sum of x^2 over tensors[i], computed in float64. The result does not
  /// depend on the number of threads.
  void (*sums_of_squares)(std::span<const Tensor> tensors, const Tensor& out);
  /// Sets `norm` to the square root of the sum of `squares`, and multiplies the tensors, of which
  /// there is one at least, by max_norm / (norm + 1e-6) where that is below 1. Both are float64.
  void (*clip)(std::span<const Tensor> tensors, const Tensor& squares, double max_norm,
               const Tensor& norm);
  /// Divides the tensors by `scale`, and sets `found_inf` to 1 where an element is infinite or
  /// NaN; otherwise `found_inf` keeps its value. Both are float32 of one element.
  void (*unscale)(std::span<const Tensor> tensors, const Tensor& scale, const Tensor& found_inf);
  /// Computes to[i] = factor * from[i]. The two may be one tensor. from[i] has the dtype of to[i],
  /// or a 16-bit dtype where to[i] is float32; it is then widened before it is scaled.
  void (*scale_into)(std::span<const Tensor> from, std::span<const Tensor> to, double factor);
};

}  // namespace tutti::kernels
