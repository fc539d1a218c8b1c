// cpu::Math implements the mathematical functions of kernels/operations.h on the CPU. In
// float32, exp and tanh are written without branches so that loops over them vectorise. Their
// errors against float64 are at most 2 units in the last place (tests/kernels/elementwise_test.cpp
// measures them). All other functions, and all functions in float64, call the C library, which
// looks at the bits of numbers: it gets 0 for denormal numbers where those are taken for 0.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

struct Math {
  static float exp(float x);
  static double exp(double x) { return std::exp(x); }
  static float tanh(float x);
  static double tanh(double x) { return flushed(std::tanh(flushed(x))); }
  // clang-format off
  template <class T> static T abs(T x) { return std::abs(x); }
  template <class T> static T log(T x) { return flushed(std::log(flushed(x))); }
  template <class T> static T sqrt(T x) { return std::sqrt(x); }
  template <class T> static T sin(T x) { return flushed(std::sin(flushed(x))); }
  template <class T> static T cos(T x) { return flushed(std::cos(flushed(x))); }
  template <class T> static T floor(T x) { return std::floor(x); }
  template <class T> static T ceil(T x) { return std::ceil(x); }
  template <class T> static T rint(T x) { return std::rint(x); }
  template <class T> static T pow(T x, T y) { return flushed(std::pow(flushed(x), flushed(y))); }
  // clang-format on

 private:
  /// Returns 0 for a number that the processor takes for 0.
  template <class T>
  static T flushed(T x) {
    return x == T(0) ? std::copysign(T(0), x) : x;
  }
  /// 2^n for n in [-126, 127].
  static float power_of_two(std::int32_t n) { return std::bit_cast<float>((n + 127) << 23); }
};

/// Computes exp(x) = 2^n exp(r) with x = n ln 2 + r and |r| <= ln 2 / 2. exp(r) is approximated by
/// its Taylor polynomial of degree 7 (relative error 7e-9). 2^n is multiplied in as two factors, so
/// that subnormal results are correct.
inline float Math::exp(float x) {
  const float clamped = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  // Adding 1.5 * 2^23 rounds to the nearest integer, in the default rounding mode and on every
  // processor.
  const float n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;
  // ln 2 is split into two parts. The product of n and the first part is exact.
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  const auto whole = static_cast<std::int32_t>(n == n ? n : 0.0f);
  const std::int32_t half = whole / 2;
  return x == x ? p * power_of_two(half) * power_of_two(whole - half) : x;
}

/// Computes tanh(|x|) = (1 - e) / (1 + e) with e = exp(-2|x|) and gives it the sign of x. For |x| <
/// 0.625, where 1 - e cancels, the result is x times a polynomial in x^2 (least squares on
/// Chebyshev nodes, constant term 1; relative error 2e-8).
inline float Math::tanh(float x) {
  const float size = std::fabs(x), z = x * x;
  const float e = exp(-2.0f * size);
  const float far = std::copysign((1.0f - e) / (1.0f + e), x);
  float p = -0.00610494545f;
  p = p * z + 0.021003639f;
  p = p * z - 0.0538524968f;
  p = p * z + 0.133327823f;
  p = p * z - 0.333333291f;
  return size < 0.625f ? x + x * (z * p) : far;
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
