// This file holds the device code of the backward kernels: the gradient below the ReLU (called g:
// dy where the ReLU passed, else 0), its sums in one thread, and the coefficients of dx in shared
// memory. The formulas are in kernels/batch_norm_math.h.
#pragma once

#include "batch_norm_channels.h"
#include "batch_norm_geometry.h"
#include "batch_norm_reduction.h"

namespace tutti::kernels::cuda {

struct GradRules {
  /// True if a ReLU follows. Kernels that do not read a mask then compute it from x.
  bool relu = false;
  bool weighted = false;  ///< True if there are position weights: x may be NaN where g is 0.
};

/// Returns g in lane v of a vector. `passed` is the mask byte of the vector, which is used if
/// `from_mask`.
template <bool from_mask, class A>
__device__ A masked_gradient(A dy, A x, unsigned passed, int v, A center, A scale, A shift,
                             bool relu) {
  const bool pass = from_mask ? (passed >> v & 1) != 0
                              : !(relu && (x - center) * scale + shift <= A(0));
  return pass ? dy : A(0);
}

/// The gradient sums of one thread: g and g (x - center). They run in float32 over 64 vectors and
/// in float64 beyond.
template <class A, int V, bool rows>
struct GradSums {
  static constexpr int K = rows ? V : 1;
  A first[V], second[V];
  double totals[2 * K];
  int until_fold = 64;

  __device__ GradSums() {
#pragma unroll
    for (int v = 0; v < V; ++v) first[v] = second[v] = 0;
#pragma unroll
    for (int k = 0; k < 2 * K; ++k) totals[k] = 0;
  }
  __device__ void add(int v, A g, A deviation, bool weighted) {
    first[v] += g;
    second[v] += weighted && g == A(0) ? A(0) : g * deviation;
  }
  __device__ void end_vector() {
    if (--until_fold == 0) fold();
  }
  __device__ void fold() {
    until_fold = 64;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      totals[rows ? v : 0] += static_cast<double>(first[v]);
      totals[K + (rows ? v : 0)] += static_cast<double>(second[v]);
      first[v] = second[v] = 0;
    }
  }
};

/// The outputs that follow from the gradient sums of a channel, and the statistics that they need.
struct GradTargets {
  std::int64_t channels;
  double* sums;
  const double *mean, *rstd;
  Target weight_grad, bias_grad;
  PacketHeader header;  ///< The header of the sums.
};

/// Writes the gradient sums of channel c and the gradients of its weight and bias. `second` is the
/// sum of g (x - mean), with the mean rounded to A; the rounding is corrected here.
template <class A>
__device__ void put_grad_sums(const GradTargets& to, std::int64_t c, double first, double second) {
  second = around_mean(second, first, to.mean[c], static_cast<double>(static_cast<A>(to.mean[c])));
  if (c == 0) put_header(to.sums, to.header, 0, 0);
  to.sums[packet_header_size + c] = first;
  to.sums[packet_header_size + to.channels + c] = second;
  to.weight_grad.put(c, second * to.rstd[c]);
  to.bias_grad.put(c, first);
}

/// The gradient sums and the moments over all ranks, from which dx is computed. Both are null if
/// mean and rstd are constants.
struct GradSources {
  const double *sums = nullptr, *moments = nullptr;
  double floor = -1;               ///< A variance below this value is treated as a constant.
  HeaderReport* report = nullptr;  ///< Where the header of the sums goes, if not null.
};

inline GradSources sources_of(const InputGradient& of) {
  if (!of.sums.defined()) return {};
  return {of.sums.data<double>(), of.moments.data<double>(), gradient_floor(of.eps), of.report};
}

/// Computes the three fields that GradAffine (below) loads from the gradient sums and M2 over n
/// elements. n is 0 if mean and rstd are constants.
template <class A>
__device__ void put_gradient_coefficients(double mean, double rstd, double weight, double n,
                                          ChannelSums sums, double m2, double floor, A* fields) {
  const GradientCoefficients<A> of =
      n > 0 ? gradient_coefficients<A>(mean, rstd, weight, 1 / n, sums, m2, floor)
            : gradient_coefficients<A>(rstd, weight);
  fields[0] = of.of_g;
  fields[1] = of.of_x;
  fields[2] = of.constant;
}

/// The GradientCoefficients of the K channels that the calling thread works on.
template <class A, int K>
struct GradAffine {
  A a[K], b[K], c[K];

  __device__ GradAffine(const A* shared, int width, int across) {
    take(a, shared, 3, width, across);
    take(b, shared, 4, width, across);
    take(c, shared, 5, width, across);
  }
};

}  // namespace tutti::kernels::cuda
