// exp and what follows from it in float32, written without branches so that loops over them
// vectorise. Errors against float64 are at most 2 units in the last place
// (tests/kernels/elementwise_test.cpp measures them). float64 goes to the C library: it is the
// oracle.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tutti::kernels::cpu {

/// 2^n for n in [-126, 127].
inline float power_of_two(std::int32_t n) { return std::bit_cast<float>((n + 127) << 23); }

/// exp(x): x = n ln 2 + r with |r| <= ln 2 / 2, the Taylor polynomial of degree 7 for exp(r)
/// (relative error 7e-9 there), and 2^n in two factors so that subnormal results come out right.
inline float vector_exp(float x) {
  const float clamped = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  // Adding 1.5 * 2^23 rounds to the nearest integer, in the default rounding mode and on every
  // processor.
  const float n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) -
                  n * -2.12194440e-4f;  // ln 2 in two parts, the first exact times n
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

inline double vector_exp(double x) { return std::exp(x); }

template <class C>
C vector_sigmoid(C x) {
  return C(1) / (C(1) + vector_exp(-x));
}

/// tanh(x) = (1 - e) / (1 + e) with e = exp(-2|x|); below 0.625, where that cancels, x times a
/// polynomial in x^2 (least squares on Chebyshev nodes, constant term 1; relative error 2e-8
/// there).
inline float vector_tanh(float x) {
  const float size = std::fabs(x), z = x * x;
  const float e = vector_exp(-2.0f * size);
  const float far = std::copysign((1.0f - e) / (1.0f + e), x);
  float p = -0.00610494545f;
  p = p * z + 0.021003639f;
  p = p * z - 0.0538524968f;
  p = p * z + 0.133327823f;
  p = p * z - 0.333333291f;
  return size < 0.625f ? x + x * (z * p) : far;
}

inline double vector_tanh(double x) { return std::tanh(x); }

}  // namespace tutti::kernels::cpu
