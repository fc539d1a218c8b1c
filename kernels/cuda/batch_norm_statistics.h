// What becomes of the moments of a channel, on the device: packet, sums for the other ranks, mean
// and rstd, running statistics. Every part is optional, so that one launch does what follows in any
// case.
#pragma once

#include "batch_norm_device.h"

namespace tutti::kernels::cuda {

/// Null pointers: not asked for.
struct Statistics {
  std::int64_t channels = 0;
  double *moments = nullptr, *sums = nullptr;  ///< packets
  bool exact = false;                          ///< sums in high and low parts
  PacketHeader header;                         ///< of the sums
  double ranks = 0;                            ///< whose messages are to agree, or nothing moves
  double *mean = nullptr, *rstd = nullptr, eps = 0;
  bool floor = false;
  void *running_mean = nullptr, *running_var = nullptr;
  bool running_wide = false;
  std::int64_t* batches = nullptr;
  double* elements = nullptr;
  Tracking tracking = Tracking::momentum;
  double momentum = 0;
};

// ---- sums that carry more digits than a double has: see kernels/batch_norm.h. A product is
// written as a fused multiply-add, so that the compiler does not fuse it into the addition after
// it.

struct Double2 {
  double high, low;
};

__device__ inline Double2 exact_sum(double a, double b) {
  const double sum = a + b, of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}
__device__ inline Double2 exact_product(double a, double b) {
  const double product = fma(a, b, 0.0);
  return {product, fma(a, b, -product)};
}

/// A high part of 26 bits, and the rest. What is infinite or NaN has no rest.
__device__ inline void split(Double2 from, double& high, double& low) {
  const double cut = __longlong_as_double(__double_as_longlong(from.high) & ~((1LL << 27) - 1));
  const bool finite = from.high - from.high == 0;
  high = finite ? cut : from.high;
  low = finite ? (from.high - cut) + from.low : 0;
}

__device__ inline void put_sums(const Statistics& to, std::int64_t c, double n, double mean,
                                double m2) {
  double* of = to.sums + packet_header_size + c;
  const std::int64_t C = to.channels;
  if (!to.exact) {
    if (c == 0) put_header(to.sums, to.header, n, 0);
    of[0] = n * mean;
    of[C] = m2 + n * mean * mean;
    return;
  }
  if (c == 0) {
    double high, low;
    split({n, 0}, high, low);
    put_header(to.sums, to.header, high, low);
  }
  const Double2 first = exact_product(n, mean), second = exact_product(first.high, mean);
  const Double2 total = exact_sum(second.high, m2);
  split(first, of[0], of[2 * C]);
  split({total.high, total.low + (second.low + first.low * mean)}, of[C], of[3 * C]);
}

/// Count, mean and M2 of channel c from sums.
__device__ inline void get_sums(const double* sums, bool exact, std::int64_t C, std::int64_t c,
                                double& n, double& mean, double& m2) {
  const double* of = sums + packet_header_size + c;
  if (!exact) {
    n = sums[0];
    mean = n > 0 ? of[0] / n : 0;
    m2 = of[C] - of[0] * mean;
  } else {
    const Double2 count = exact_sum(sums[0], sums[1]);
    const Double2 first = exact_sum(of[0], of[2 * C]), second = exact_sum(of[C], of[3 * C]);
    // Squares around `about`, the mean but for its rounding: second - about first - about (first -
    // n about).
    n = count.high;
    const double about = n > 0 ? first.high / n : 0;
    const Double2 whole = exact_product(n, about), square = exact_product(about, first.high);
    const double rest = (first.high - whole.high) + (first.low - whole.low - count.low * about);
    m2 = (second.high - square.high) + (second.low - square.low - about * first.low) - about * rest;
    mean = n > 0 ? about + rest / n : 0;
  }
  if (m2 < 0) m2 = 0;  // NaN stays
}

__device__ inline double rstd_of(double var, double eps, bool floor) {
  if (!floor) var += eps;
  else if (var < eps) var = eps;
  return 1 / sqrt(var);
}

/// The counters of the running statistics, to be read before anybody moves them.
struct Counters {
  std::int64_t batches = 0;
  double elements = 0;
};

__device__ inline Counters read_counters(const Statistics& to) {
  return {to.batches ? *to.batches : 0, to.elements ? *to.elements : 0};
}

__device__ inline void put_running(const Statistics& to, const Counters& before, std::int64_t c,
                                   double n, double mean, double m2) {
  const Target means{to.running_mean, to.running_wide}, vars{to.running_var, to.running_wide};
  const double old_mean = Values{to.running_mean, to.running_wide, 0}[c],
               old_var = Values{to.running_var, to.running_wide, 0}[c];
  if (to.tracking == Tracking::pooled) {
    const double so_far = before.elements, delta = mean - old_mean, share = n / (so_far + n);
    const double total = so_far > 0 ? (so_far - 1) * old_var + m2 + delta * delta * so_far * share
                                    : m2;
    means.put(c, so_far > 0 ? old_mean + delta * share : mean);
    vars.put(c, total / (so_far + n - 1));
    return;
  }
  const double factor = to.tracking == Tracking::cumulative
                            ? 1 / static_cast<double>(before.batches + 1)
                            : to.momentum;
  means.put(c, (1 - factor) * old_mean + factor * mean);
  vars.put(c, (1 - factor) * old_var + factor * m2 / (n - 1));
}

/// Everything of channel c but the counters of the running statistics. One thread for each channel,
/// of any block.
__device__ inline void put_statistics(const Statistics& to, const Counters& before, std::int64_t c,
                                      double n, double mean, double m2) {
  if (to.moments) {
    if (c == 0) to.moments[0] = n;
    to.moments[packet_header_size + c] = mean;
    to.moments[packet_header_size + to.channels + c] = m2;
  }
  if (to.sums) put_sums(to, c, n, mean, m2);
  if (to.mean) {
    to.mean[c] = mean;
    to.rstd[c] = rstd_of(n > 0 ? m2 / n : 0, to.eps, to.floor);
  }
  if (to.running_mean && n > 1) put_running(to, before, c, n, mean, m2);
}

/// By one thread, when everybody has read them.
__device__ inline void put_counters(const Statistics& to, const Counters& before, double n) {
  if (!to.running_mean || !(n > 1)) return;
  *to.batches = before.batches + 1;
  if (to.elements) *to.elements = before.elements + n;
}

// ---- host side

inline Statistics statistics_of(std::int64_t channels) {
  Statistics to;
  to.channels = channels;
  return to;
}

inline void add_moments(Statistics& to, const Tensor& moments) {
  to.moments = moments.data<double>();
}

inline void add_sums(Statistics& to, const Tensor& sums) {
  to.sums = sums.data<double>();
  to.exact = sums.numel() != packet_size(to.channels);
}

inline void add_finish(Statistics& to, Epsilon eps, const Tensor& mean, const Tensor& rstd) {
  to.mean = mean.data<double>();
  to.rstd = rstd.data<double>();
  to.eps = eps.value;
  to.floor = eps.floor;
}

inline void add_update(Statistics& to, Tracking tracking, double momentum,
                       const RunningStatistics& running) {
  if (!running.mean.defined()) return;
  to.running_mean = running.mean.raw();
  to.running_var = running.var.raw();
  to.running_wide = running.mean.dtype() == float64;
  to.batches = running.batches.data<std::int64_t>();
  to.elements = tracking == Tracking::pooled ? running.elements.data<double>() : nullptr;
  to.tracking = tracking;
  to.momentum = momentum;
}

/// Everything that follows from a batch's moments.
inline Statistics statistics_of(const Tensor& moments, std::int64_t channels,
                                const StatisticsUpdate& how, const Tensor& mean,
                                const Tensor& rstd) {
  Statistics to = statistics_of(channels);
  add_moments(to, moments);
  add_finish(to, how.eps, mean, rstd);
  add_update(to, how.tracking, how.momentum, how.running);
  to.ranks = how.ranks;
  return to;
}

/// The moments of x, and from them whatever `to` asks for: one launch.
void launch_moments(const Tensor& x, const Tensor& weights, const Statistics& to);

}  // namespace tutti::kernels::cuda
