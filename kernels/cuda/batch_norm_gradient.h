// What the backward kernels of batch norm on CUDA share, streaming and persistent ones: the
// gradient below the ReLU, its sums in one thread, and the coefficients of dx in shared memory. The
// formulas stand in kernels/batch_norm_math.h.
#pragma once

#include "batch_norm_device.h"

namespace tutti::kernels::cuda {

struct GradRules {
  bool relu = false;      ///< the mask follows from x, but in kernels that read it
  bool weighted = false;  ///< x may be NaN where g is 0
};

/// dy below the ReLU, in lane v of a vector whose mask is `passed`.
template <bool from_mask, class A>
__device__ A masked_gradient(A dy, A x, unsigned passed, int v, A center, A scale, A shift,
                             bool relu) {
  const bool pass = from_mask ? (passed >> v & 1) != 0
                              : !relu || (x - center) * scale + shift > A(0);
  return pass ? dy : A(0);
}

/// Sums of one thread, in float32 over a run and in float64 beyond, around the center.
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

/// Where the gradient sums of a channel go.
struct GradTargets {
  std::int64_t channels;
  double* sums;
  const double *mean, *rstd;
  Target weight_grad, bias_grad;
  PacketHeader header;  ///< of the sums
};

/// `second` was taken around the mean rounded to A.
template <class A>
__device__ void put_grad_sums(const GradTargets& to, std::int64_t c, double first, double second) {
  second = around_mean(second, first, to.mean[c], static_cast<double>(static_cast<A>(to.mean[c])));
  if (c == 0) put_header(to.sums, to.header, 0, 0);
  to.sums[packet_header_size + c] = first;
  to.sums[packet_header_size + to.channels + c] = second;
  to.weight_grad.put(c, second * to.rstd[c]);
  to.bias_grad.put(c, first);
}

/// What dx follows from: gradient sums and moments over all ranks; null for constant mean and rstd.
struct GradSources {
  const double *sums = nullptr, *moments = nullptr;
  double floor = -1;  ///< a variance below it is a constant
};

inline GradSources sources_of(const Tensor& sums, const Tensor& moments, Epsilon eps) {
  if (!sums.defined()) return {};
  return {sums.data<double>(), moments.data<double>(), gradient_floor(eps)};
}

/// The fields of a GradAffine below, from the gradient sums and M2 over n elements; n is 0 if mean
/// and rstd are constants.
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
