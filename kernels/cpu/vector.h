// This file provides loops that run on the widest vectors of the processor and handle the remaining
// elements one by one; the body of such a loop is written once. Kernels use them where the compiler
// does not vectorise a loop well by itself. The vector extension of GCC and Clang compiles for any
// processor. Elements of 16 bits are computed in float32. The calling convention for vectors
// depends on the processor (-Wno-psabi), which does not matter because all calls are inlined.
#pragma once

#include "../../core/dtype.h"

#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX512BF16__) || defined(TUTTI_CPU_AVX512_BF16)
#include <immintrin.h>
#endif

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

/// The size of a vector. GCC takes wider ones apart into single elements.
inline constexpr std::size_t vector_bytes = TUTTI_CPU_VECTOR_BYTES;

/// Loads, stores and computes one element at a time.
template <class T>
struct Scalar {
  using A = Accumulate<T>;
  using V = A;
  static constexpr std::int64_t width = 1;
  [[gnu::always_inline]] static V load(const T* p) { return A(*p); }
  [[gnu::always_inline]] static void store(T* p, V v) { *p = T(v); }
  [[gnu::always_inline]] static V get(const A* p) { return *p; }
  [[gnu::always_inline]] static void put(A* p, V v) { *p = v; }
};

/// Loads, stores and computes `width` elements at a time, which fill a vector as numbers of type A.
template <class T>
struct Vector {
  using A = Accumulate<T>;
  typedef A V __attribute__((vector_size(vector_bytes)));
  static constexpr std::int64_t width = vector_bytes / sizeof(A);

  [[gnu::always_inline]] static V get(const A* p) {
    V v;
    std::memcpy(&v, p, sizeof(V));
    return v;
  }
  [[gnu::always_inline]] static void put(A* p, V v) { std::memcpy(p, &v, sizeof(V)); }

  [[gnu::always_inline]] static V load(const T* p) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      Half half;
      std::memcpy(&half, p, sizeof(half));
      const Word word = __builtin_convertvector(half, Word) << 16;
      return (V)word;
    } else {
      return get(p);
    }
  }
  [[gnu::always_inline]] static void store(T* p, V v) {
    if constexpr (std::is_same_v<T, BFloat16>) {
#if defined(__AVX512BF16__) || defined(TUTTI_CPU_AVX512_BF16)
      const auto half = _mm512_cvtneps_pbh((__m512)v);  // Flushes magnitudes below 2^-126 to 0.
#else
      const Word bits = (Word)v;
      const Word rounded = v != v ? (bits | 0x400000u) : bits + 0x7fffu + ((bits >> 16) & 1u);
      const Half half = __builtin_convertvector(rounded >> 16, Half);
#endif
      std::memcpy(static_cast<void*>(p), &half, sizeof(half));
    } else {
      put(p, v);
    }
  }

 private:
  typedef std::uint32_t Word __attribute__((vector_size(vector_bytes)));
  typedef std::uint16_t Half __attribute__((vector_size(vector_bytes / 2)));
};

/// Returns the sum of a vector's numbers, computed by adding its halves recursively. The halves are
/// made by shuffles, because a vector whose address is taken does not stay in registers.
template <class V>
[[gnu::always_inline]] inline auto total(V v) {
  constexpr std::size_t half = sizeof(V) / sizeof(v[0]) / 2;
  if constexpr (half == 1) {
    return v[0] + v[1];
  } else {
    return [&]<std::size_t... i>(std::index_sequence<i...>) __attribute__((always_inline)) {
      return total(__builtin_shufflevector(v, v, i...) +
                   __builtin_shufflevector(v, v, (half + i)...));
    }
    (std::make_index_sequence<half>{});
  }
}

/// The indices of a vector's lanes, from which masks are computed.
template <class A>
inline constexpr A counting[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/// Calls body(i, lanes) for i from 0 to n - 1 in steps of lanes.width. `lanes` is a Vector<T>, or a
/// Scalar<T> for the last elements, which do not fill a vector.
template <class T, class Body>
[[gnu::always_inline]] inline void for_lanes(std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + Vector<T>::width <= n; i += Vector<T>::width) body(i, Vector<T>{});
  for (; i < n; ++i) body(i, Scalar<T>{});
}

/// Computes two sums over [0, n) at once. body(i, lanes, a, b) adds to a and b, which are vectors
/// if `lanes` is a Vector<T>, else numbers. Four pairs of partial sums are used in turn, so that an
/// addition need not wait for the previous one.
template <class T, class Body>
[[gnu::always_inline]] inline void sum_lanes(std::int64_t n, Accumulate<T>& first,
                                             Accumulate<T>& second, const Body& body) {
  using A = Accumulate<T>;
  constexpr std::int64_t width = Vector<T>::width, pairs = 4;
  typename Vector<T>::V a[pairs] = {}, b[pairs] = {};
  std::int64_t i = 0;
  for (; i + pairs * width <= n; i += pairs * width)
    for (std::int64_t p = 0; p < pairs; ++p) body(i + p * width, Vector<T>{}, a[p], b[p]);
  for (; i + width <= n; i += width) body(i, Vector<T>{}, a[0], b[0]);
  for (std::int64_t p = 1; p < pairs; ++p) {
    a[0] += a[p];
    b[0] += b[p];
  }
  A rest_a = 0, rest_b = 0;
  for (; i < n; ++i) body(i, Scalar<T>{}, rest_a, rest_b);
  first = rest_a + total(a[0]);
  second = rest_b + total(b[0]);
}

/// Like sum_lanes, but for many runs with a small n: each call adds to Vector<T>::width partial
/// sums at `first` and as many at `second`, which the caller adds up at the end.
template <class T, class Body>
[[gnu::always_inline]] inline void accumulate_lanes(std::int64_t n, Accumulate<T>* first,
                                                    Accumulate<T>* second, const Body& body) {
  constexpr std::int64_t width = Vector<T>::width;
  auto a = Vector<T>::get(first), b = Vector<T>::get(second);
  std::int64_t i = 0;
  for (; i + width <= n; i += width) body(i, Vector<T>{}, a, b);
  Vector<T>::put(first, a);
  Vector<T>::put(second, b);
  for (; i < n; ++i) body(i, Scalar<T>{}, first[i % width], second[i % width]);
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
