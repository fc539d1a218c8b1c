// The formulas of layer normalisation, written once for the CPU and for CUDA kernels.
#pragma once

#include "../core/host_device.h"

namespace tutti::kernels {

/// The mean of a row, rounded to type A, and the error of that rounding. Deviations are thus
/// accurate even if the mean is many standard deviations from 0.
template <class A>
struct SplitMean {
  A rounded, rest;

  TUTTI_HOST_DEVICE explicit SplitMean(double mean)
      : rounded(static_cast<A>(mean)), rest(static_cast<A>(mean - static_cast<double>(rounded))) {}
  TUTTI_HOST_DEVICE A deviation(A x) const { return x - rounded - rest; }
};

/// The statistics of a row. They normalise an element to z = (x - mean) rstd.
template <class A>
struct RowStatistics {
  SplitMean<A> mean;
  A rstd;

  TUTTI_HOST_DEVICE RowStatistics(double row_mean, double row_rstd)
      : mean(row_mean), rstd(static_cast<A>(row_rstd)) {}
  TUTTI_HOST_DEVICE A normalized(A x) const { return mean.deviation(x) * rstd; }
  /// Returns y = z weight + bias.
  TUTTI_HOST_DEVICE A output(A x, A weight, A bias) const { return normalized(x) * weight + bias; }
  /// Returns dx = rstd (g - mean(g) - z mean(g z)), with g = dy weight.
  TUTTI_HOST_DEVICE A input_grad(A x, A g, A mean_of_g, A mean_of_gz) const {
    return rstd * (g - mean_of_g - normalized(x) * mean_of_gz);
  }
};

}  // namespace tutti::kernels
