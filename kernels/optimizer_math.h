// The formulas of the fused optimizers and of gradient clipping, for one element, shared by the
// CPU and the CUDA kernels. Each update struct holds a step's factors in the type C that elements
// are computed in. The kernels in cpu/ and cuda/ loop over the elements.
#pragma once

#include "../core/host_device.h"
#include "optimizer.h"

#include <cmath>

namespace tutti::kernels {

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

/// Adam and AdamW, with and without AMSGrad.
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
    update_moments(p, g, m, v);
    return stepped(p, m, v);
  }
  /// AMSGrad also keeps the largest value that v ever had.
  TUTTI_HOST_DEVICE C updated(C p, C g, C& m, C& v, C& largest) const {
    update_moments(p, g, m, v);
    largest = v <= largest ? largest : v;  // NaN in v reaches `largest`.
    return stepped(p, m, largest);
  }

 private:
  TUTTI_HOST_DEVICE void update_moments(C p, C g, C& m, C& v) const {
    const C gradient = g + decay * p;
    m = beta1 * m + take1 * gradient;
    v = beta2 * v + take2 * gradient * gradient;
  }
  TUTTI_HOST_DEVICE C stepped(C p, C m, C v) const {
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

/// Returns `x` limited to [-bound, bound]; NaN stays NaN.
template <class C>
TUTTI_HOST_DEVICE C clipped(C x, C bound) {
  return x > bound ? bound : (x < -bound ? -bound : x);
}

/// Returns the factor that scales gradients of this norm to `max_norm`. The caller ignores a factor
/// of 1 or more.
TUTTI_HOST_DEVICE inline double clip_factor(double max_norm, double norm) {
  return max_norm / (norm + 1e-6);
}

}  // namespace tutti::kernels
