// The formulas of batch normalisation for one channel, written once for host and device code:
// moments and sums, rstd, running averages, the coefficients of the output and of the gradient, and
// the comparison of packet headers. Loops over elements and channels, and how they are cut for a
// device, belong to kernels/cpu and kernels/cuda.
#pragma once

#include "../core/host_device.h"
#include "batch_norm.h"

#include <cmath>
#include <cstring>

namespace tutti::kernels {

// ---- packet headers

/// Returns the header of the packet that begins at `packet`.
TUTTI_HOST_DEVICE inline PacketHeader& header_of(double* packet) {
  return *reinterpret_cast<PacketHeader*>(packet);
}
TUTTI_HOST_DEVICE inline const PacketHeader& header_of(const double* packet) {
  return *reinterpret_cast<const PacketHeader*>(packet);
}

/// Returns whether all ranks had the same fingerprint h, given the sums of h and h^2 over the
/// ranks: ranks sum(h^2) = sum(h)^2 holds only if every h is the same.
TUTTI_HOST_DEVICE inline bool fingerprints_agree(double sum, double sum_of_squares, double ranks) {
  const double mean = sum / ranks;
  return mean * mean * ranks == sum_of_squares;
}

// ---- double-double arithmetic

/// A DoubleDouble is the number high + low, where |low| is at most half a unit in the last place of
/// high.
struct DoubleDouble {
  double high, low;
};

/// Returns a + b without rounding (Knuth's TwoSum).
TUTTI_HOST_DEVICE inline DoubleDouble exact_sum(double a, double b) {
  const double sum = a + b, part_of_b = sum - a;
  return {sum, (a - (sum - part_of_b)) + (b - part_of_b)};
}

/// Returns a b without rounding. A fused multiply-add gives the rounding error of the product.
TUTTI_HOST_DEVICE inline DoubleDouble exact_product(double a, double b) {
#ifdef __CUDA_ARCH__
  const double product = __dmul_rn(a, b);  // nvcc may fuse a * b with a later addition.
#else
  const double product = a * b;
#endif
  return {product, std::fma(a, b, -product)};
}

/// Splits a number into a high part of 26 bits and the rest. Many such high parts add up without
/// rounding. The rest of an infinite or NaN number is 0.
TUTTI_HOST_DEVICE inline DoubleDouble split(DoubleDouble number) {
  std::uint64_t bits;
  std::memcpy(&bits, &number.high, sizeof bits);
  bits &= ~((std::uint64_t{1} << 27) - 1);
  double high;
  std::memcpy(&high, &bits, sizeof high);
  const bool finite = number.high - number.high == 0;
  return {finite ? high : number.high, finite ? (number.high - high) + number.low : 0};
}

// ---- moments and sums: the numbers of one channel in a packet. n is the count.

struct ChannelMoments {
  double mean, m2;
};

struct ChannelSums {
  double first, second;  ///< n mean and M2 + n mean^2
};

/// The same sums, each split into a high and a low part.
struct ExactChannelSums {
  DoubleDouble first, second;
};

TUTTI_HOST_DEVICE inline ChannelSums sums_of(double n, ChannelMoments moments) {
  const double first = n * moments.mean;
  return {first, moments.m2 + first * moments.mean};
}

/// Returns the moments of sums. `per_n` is 1 / n, or 0 if n is 0. An M2 that rounding made negative
/// becomes 0; a NaN stays NaN.
TUTTI_HOST_DEVICE inline ChannelMoments moments_of(double per_n, ChannelSums sums) {
  const double mean = sums.first * per_n, m2 = sums.second - sums.first * mean;
  return {mean, m2 < 0 ? 0 : m2};
}

TUTTI_HOST_DEVICE inline ExactChannelSums exact_sums_of(double n, ChannelMoments moments) {
  const DoubleDouble first = exact_product(n, moments.mean),
                     second = exact_product(first.high, moments.mean),
                     total = exact_sum(second.high, moments.m2);
  const double low = total.low + (second.low + first.low * moments.mean);
  return {split(first), split({total.high, low})};
}

/// Returns the moments of exact sums. M2 is computed around `about`, the rounded mean, as
/// second - 2 about first + about^2 n. With rest = first - n about this is equal to
/// second - about first - about rest.
TUTTI_HOST_DEVICE inline ChannelMoments moments_of(DoubleDouble n, ExactChannelSums sums) {
  const DoubleDouble first = exact_sum(sums.first.high, sums.first.low),
                     second = exact_sum(sums.second.high, sums.second.low);
  const double about = n.high > 0 ? first.high / n.high : 0;
  const DoubleDouble whole = exact_product(n.high, about),
                     square = exact_product(about, first.high);
  const double rest = (first.high - whole.high) + (first.low - whole.low - n.low * about);
  const double m2 = (second.high - square.high) + (second.low - square.low - about * first.low) -
                    about * rest;
  return {n.high > 0 ? about + rest / n.high : 0, m2 < 0 ? 0 : m2};
}

/// Adds the moments of a set to those of the `n` elements before it, by Chan's formula. `share` is
/// the set's share of all elements, these `n` included. (Chan, Golub, LeVeque, "Updating formulae
/// and a pairwise algorithm for computing sample variances", 1979.)
TUTTI_HOST_DEVICE inline void merge(double n, double share, ChannelMoments set, double& mean,
                                    double& m2) {
  const double delta = set.mean - mean;
  mean += delta * share;
  m2 += set.m2 + delta * delta * n * share;
}

/// Returns the moments of n elements from the sums of x - pivot and (x - pivot)^2.
TUTTI_HOST_DEVICE inline ChannelMoments moments_around(double pivot, double n, double sum,
                                                       double squares) {
  const double offset = n == 0 ? 0 : sum / n, m2 = squares - sum * offset;
  return {n == 0 ? 0 : pivot + offset, m2 < 0 ? 0 : m2};
}

// ---- statistics

TUTTI_HOST_DEVICE inline double rstd_of(double variance, Epsilon eps) {
  if (!eps.floor) variance += eps.value;
  else if (variance < eps.value) variance = eps.value;  // fmax would turn NaN into a number
  return 1 / std::sqrt(variance);
}

struct RunningMoments {
  double mean, var;  ///< `var` is unbiased.
};

/// Returns the fraction by which the running statistics move towards the statistics of a batch.
/// `batches` counts all batches so far, this one included.
TUTTI_HOST_DEVICE inline double fraction_of(Tracking tracking, double momentum,
                                            std::int64_t batches) {
  return tracking == Tracking::cumulative ? 1 / static_cast<double>(batches) : momentum;
}

/// Returns the running statistics after a batch of n > 1 elements, for Tracking::momentum and
/// Tracking::cumulative.
TUTTI_HOST_DEVICE inline RunningMoments moved(RunningMoments old, double fraction, double n,
                                              ChannelMoments batch) {
  return {(1 - fraction) * old.mean + fraction * batch.mean,
          (1 - fraction) * old.var + fraction * batch.m2 / (n - 1)};
}

/// Returns the running statistics after a batch of n > 1 elements that follows `elements` elements,
/// for Tracking::pooled.
TUTTI_HOST_DEVICE inline RunningMoments pooled(RunningMoments old, double elements, double n,
                                               ChannelMoments batch) {
  const double share = n / (elements + n), delta = batch.mean - old.mean;
  const double total = (elements > 0 ? (elements - 1) * old.var : 0) + batch.m2 +
                       (elements > 0 ? delta * delta * elements * share : 0);
  return {elements > 0 ? old.mean + delta * share : batch.mean, total / (elements + n - 1)};
}

// ---- the output and the gradient of the input

/// The coefficients of z = (x - center) scale + shift, computed in A. The center is the mean
/// rounded to A, and the shift corrects the rounding error, so that z is accurate even if the mean
/// is many standard deviations from 0.
template <class A>
struct OutputCoefficients {
  A center, scale, shift;
};

template <class A>
TUTTI_HOST_DEVICE inline OutputCoefficients<A> output_coefficients(double mean, double rstd,
                                                                   double weight, double bias) {
  const A center = static_cast<A>(mean);
  const double scale = weight * rstd;
  return {center, static_cast<A>(scale),
          static_cast<A>(bias - (mean - static_cast<double>(center)) * scale)};
}

/// Returns sum g (x - mean), where `second` is sum g (x - center) and `first` is sum g.
TUTTI_HOST_DEVICE inline double around_mean(double second, double first, double mean,
                                            double center) {
  return second - (mean - center) * first;
}

/// The coefficients of dx = of_g g + of_x (x - center) + constant, where g is dy after the backward
/// of the ReLU.
template <class A>
struct GradientCoefficients {
  A of_g, of_x, constant;
};

/// Returns the coefficients for a mean and rstd that are constants, as running statistics are.
template <class A>
TUTTI_HOST_DEVICE inline GradientCoefficients<A> gradient_coefficients(double rstd, double weight) {
  return {static_cast<A>(weight * rstd), A(0), A(0)};
}

/// Returns the coefficients for batch statistics. With S1 = sum g and S2 = sum g (x - mean) over
/// the n elements of all ranks:
///   dx = weight rstd (g - S1 / n - (x - mean) rstd^2 S2 / n)
/// A variance below `floor` was replaced by it in the forward and has no gradient. If there is no
/// floor, `floor` is -1.
template <class A>
TUTTI_HOST_DEVICE inline GradientCoefficients<A> gradient_coefficients(double mean, double rstd,
                                                                       double weight, double per_n,
                                                                       ChannelSums gradient_sums,
                                                                       double m2, double floor) {
  const double scale = weight * rstd;
  const double varying = -scale * rstd * rstd * gradient_sums.second * per_n;
  const double of_x = m2 * per_n < floor ? 0 : varying;
  const double center = static_cast<double>(static_cast<A>(mean));
  return {static_cast<A>(scale), static_cast<A>(of_x),
          static_cast<A>(-scale * gradient_sums.first * per_n - of_x * (mean - center))};
}

TUTTI_HOST_DEVICE inline double gradient_floor(Epsilon eps) { return eps.floor ? eps.value : -1; }

}  // namespace tutti::kernels
