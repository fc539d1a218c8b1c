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

/// The header of the packet that begins at `packet`.
TUTTI_HOST_DEVICE inline PacketHeader& header_of(double* packet) {
  return *reinterpret_cast<PacketHeader*>(packet);
}
TUTTI_HOST_DEVICE inline const PacketHeader& header_of(const double* packet) {
  return *reinterpret_cast<const PacketHeader*>(packet);
}

/// Whether all ranks had the same fingerprint h, told by the sums of h and h^2 over the ranks:
/// ranks sum(h^2) = sum(h)^2 holds only if every h is the same.
TUTTI_HOST_DEVICE inline bool fingerprints_agree(double sum, double sum_of_squares, double ranks) {
  const double mean = sum / ranks;
  return mean * mean * ranks == sum_of_squares;
}

// ---- double-double arithmetic

/// The number high + low, where |low| is at most half a unit in the last place of high.
struct DoubleDouble {
  double high, low;
};

/// a + b without rounding (Knuth's TwoSum).
TUTTI_HOST_DEVICE inline DoubleDouble exact_sum(double a, double b) {
  const double sum = a + b, part_of_b = sum - a;
  return {sum, (a - (sum - part_of_b)) + (b - part_of_b)};
}

/// a b without rounding. A fused multiply-add gives the rounding error of the product.
TUTTI_HOST_DEVICE inline DoubleDouble exact_product(double a, double b) {
#ifdef __CUDA_ARCH__
  const double product = __dmul_rn(a, b);  // nvcc may fuse a * b with a later addition.
#else
  const double product = a * b;
#endif
  return {product, std::fma(a, b, -product)};
}

/// Splits a number into a high part of 26 bits, of which many add up without rounding, and the
/// rest. An infinite or NaN number has a rest of 0.
TUTTI_HOST_DEVICE inline DoubleDouble split(DoubleDouble number) {
  std::uint64_t bits;
  std::memcpy(&bits, &number.high, sizeof bits);
  bits &= ~((std::uint64_t{1} << 27) - 1);
  double high;
  std::memcpy(&high, &bits, sizeof high);
  const bool finite = number.high - number.high == 0;
  return {finite ? high : number.high, finite ? (number.high - high) + number.low : 0};
}

// ---- moments and sums: what a packet holds of one channel, beside the count n

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

/// `per_n` is 1 / n, or 0 if n is 0. Rounding may make M2 negative; it becomes 0 then, and a NaN
/// stays.
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

/// M2 is taken around `about`, which is the mean except for its rounding:
/// second - 2 about first + about^2 n. With rest = first - n about this is
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

}  // namespace tutti::kernels
