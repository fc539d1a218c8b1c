// The functions by which reductions combine two values, written once for the CPU and for CUDA
// kernels.
#pragma once

#include "../core/host_device.h"

#include <limits>
#include <type_traits>

namespace tutti::kernels {

enum class Reduction { sum, max, min };

template <class T>
TUTTI_HOST_DEVICE inline bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>) return x != x;
  else return false;
}

/// Returns whether a is larger than b, where NaN is larger than every number. topk and max
/// pooling keep the first value that no other value exceeds.
template <class T>
TUTTI_HOST_DEVICE inline bool is_larger(T a, T b) {
  return !(a <= b || is_nan(b));
}

/// Combines two values. The maximum and the minimum are NaN if either value is.
template <class T>
TUTTI_HOST_DEVICE inline T combine(Reduction op, T a, T b) {
  if (op == Reduction::sum) return a + b;
  return (op == Reduction::max ? b > a : b < a) || is_nan(b) ? b : a;
}

/// Returns the neutral element: combining it with a value does not change that value.
template <class T>
constexpr T identity_of(Reduction op) {
  using Limits = std::numeric_limits<T>;
  if (op == Reduction::sum) return T(0);
  if constexpr (Limits::has_infinity)
    return op == Reduction::max ? -Limits::infinity() : Limits::infinity();
  else return op == Reduction::max ? Limits::lowest() : Limits::max();
}

}  // namespace tutti::kernels
