// The formulas of softmax and cross-entropy, written once for the CPU and for CUDA kernels. A slice
// is the logits of all classes at one position. Logarithms of probabilities are computed relative
// to the largest logit of the slice: log sum exp(x) itself would cancel where logits are large.
#pragma once

#include "../core/host_device.h"
#include "kernels.h"

#include <cmath>

namespace tutti::kernels {

/// Returns the larger of two logits. A NaN is passed over here; the sum of exponentials becomes NaN
/// anyway.
template <class T>
TUTTI_HOST_DEVICE inline T larger_logit(T x, T largest) {
  return x > largest ? x : largest;
}

/// Returns the logit that is subtracted from the others: the largest one, or 0 if all are -inf, so
/// that log-probabilities are -inf rather than NaN.
template <class T>
TUTTI_HOST_DEVICE inline T reference_logit(T largest) {
  return largest == -T(INFINITY) ? T(0) : largest;
}

/// Returns the log-probability of a class, with log_sum = log sum exp(x - reference).
template <class T>
TUTTI_HOST_DEVICE inline T log_probability(T x, T reference, T log_sum) {
  return x - reference - log_sum;
}

/// Returns the gradient of softmax from its output y and total = sum of dy y over the slice.
template <class T>
TUTTI_HOST_DEVICE inline T softmax_grad(T dy, T y, T total) {
  return y * (dy - total);
}

/// Returns the gradient of log-softmax from its output y and total = sum of dy over the slice.
template <class Math, class T>
TUTTI_HOST_DEVICE inline T log_softmax_grad(T dy, T y, T total) {
  return dy - Math::exp(y) * total;
}

/// Returns the loss of a class without smoothing: minus its log-probability.
TUTTI_HOST_DEVICE inline double negative_log_likelihood(double x, double reference,
                                                        double log_sum) {
  return reference - x + log_sum;
}

/// Returns the loss of a position from the negative log-likelihood of its target and, with label
/// smoothing, the sum of those of all classes.
TUTTI_HOST_DEVICE inline double smoothed_loss(const CrossEntropyRule& rule, double target_loss,
                                              double sum_of_losses, std::int64_t classes) {
  double loss = (1 - rule.label_smoothing) * target_loss;
  if (rule.label_smoothing != 0)
    loss += rule.label_smoothing / static_cast<double>(classes) * sum_of_losses;
  return loss;
}

/// The target distribution gives every class `each`, and the target class `target` more.
template <class T>
struct TargetDistribution {
  T each, target;

  TUTTI_HOST_DEVICE TargetDistribution(const CrossEntropyRule& rule, std::int64_t classes)
      : each(static_cast<T>(rule.label_smoothing / static_cast<double>(classes))),
        target(static_cast<T>(1 - rule.label_smoothing)) {}
};

}  // namespace tutti::kernels
