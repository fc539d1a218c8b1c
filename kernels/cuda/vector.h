// This file defines vectorised loads and stores for the normalisation and optimizer kernels. A
// thread loads and stores V elements at a time, 16 bytes where alignment allows, and computes in
// float32 (float64 for float64). Unlike in element.h, the dtype is a template parameter.
#pragma once

#include "element.h"

#include <cstring>

namespace tutti::kernels::cuda {

/// The number of elements of type T in 16 bytes.
template <class T>
constexpr int full_width = 16 / static_cast<int>(sizeof(T));

/// A vector of V elements that one instruction loads or stores.
template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T values[V];

  __device__ Accumulate<T> operator[](int v) const { return convert<Accumulate<T>>(values[v]); }
  __device__ T element(int v) const { return values[v]; }
  __device__ static Pack of(const Accumulate<T> (&x)[V]) {
    Pack pack;
#pragma unroll
    for (int v = 0; v < V; ++v) pack.values[v] = convert<T>(x[v]);
    return pack;
  }
  __device__ static Pack from(const T (&x)[V]) {
    Pack pack;
#pragma unroll
    for (int v = 0; v < V; ++v) pack.values[v] = x[v];
    return pack;
  }
};

// Two 16-bit elements as CUDA's pair type, rounded from float32 or as they are.
__device__ inline __half2 pair_of(float a, float b, __half) { return __floats2half2_rn(a, b); }
__device__ inline __half2 pair_of(__half a, __half b) { return __halves2half2(a, b); }
__device__ inline __nv_bfloat162 pair_of(float a, float b, __nv_bfloat16) {
  return __floats2bfloat162_rn(a, b);
}
__device__ inline __nv_bfloat162 pair_of(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __halves2bfloat162(a, b);
}

// This Pack holds 16-bit elements in pairs, because a single element would take a whole register.
// The pairs are stored as plain 32-bit words: CUDA's own pair types have a copy constructor, and
// the compiler does not load and store such types 16 bytes at a time.
template <class T>
requires is_16_bit_float<T>
struct alignas(16) Pack<T, 8> {
  using Pair = decltype(pair_of(T(), T()));
  std::uint32_t words[4];

  __device__ T element(int v) const {
    Pair pair;
    memcpy(static_cast<void*>(&pair), &words[v / 2], sizeof pair);
    return v % 2 == 0 ? pair.x : pair.y;
  }
  __device__ float operator[](int v) const { return convert<float>(element(v)); }
  __device__ static Pack of(const float (&x)[8]) {
    Pack pack;
#pragma unroll
    for (int p = 0; p < 4; ++p) pack.put(p, pair_of(x[2 * p], x[2 * p + 1], T()));
    return pack;
  }
  __device__ static Pack from(const T (&x)[8]) {
    Pack pack;
#pragma unroll
    for (int p = 0; p < 4; ++p) pack.put(p, pair_of(x[2 * p], x[2 * p + 1]));
    return pack;
  }

 private:
  __device__ void put(int p, Pair pair) {
    memcpy(&words[p], static_cast<const void*>(&pair), sizeof pair);
  }
};

/// Lanes [first, last) of the Pack that begins at element `at` of a tensor. The other lanes belong
/// to other threads.
struct Span {
  std::int64_t at;
  int first, last;
  /// The index of the mask byte of this Pack. Only iterators that cannot compute the index from
  /// `at` set it (batch_norm_geometry.h).
  std::int64_t vector = 0;
};

/// Loads the lanes of a span; the other lanes are 0. Elements are loaded one by one if the tensor
/// is not `aligned` or if the span covers only a part of the Pack.
template <class T, int V, bool aligned = true>
__device__ inline Pack<T, V> load(const T* from, const Span& s) {
  if (aligned && s.last - s.first == V) return *reinterpret_cast<const Pack<T, V>*>(from + s.at);
  T values[V];
#pragma unroll
  for (int v = 0; v < V; ++v) values[v] = v >= s.first && v < s.last ? from[s.at + v] : T(0.0f);
  return Pack<T, V>::from(values);
}

/// Stores the lanes of a span, under the same conditions one by one.
template <class T, int V, bool aligned = true>
__device__ inline void store(T* to, const Span& s, const Pack<T, V>& pack) {
  if (aligned && s.last - s.first == V) {
    *reinterpret_cast<Pack<T, V>*>(to + s.at) = pack;
    return;
  }
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (v >= s.first && v < s.last) to[s.at + v] = pack.element(v);
}

/// A read-only array of float32 or float64 numbers. Without data, every element is `absent`.
struct Values {
  const void* data = nullptr;
  bool wide = false;  ///< True if `data` points to float64 numbers.
  double absent = 0;

  template <class A>
  __device__ A get(std::int64_t i) const {
    if (data == nullptr) return static_cast<A>(absent);
    return wide ? static_cast<A>(static_cast<const double*>(data)[i])
                : static_cast<A>(static_cast<const float*>(data)[i]);
  }
  __device__ double operator[](std::int64_t i) const { return get<double>(i); }
};

inline Values values_of(const Tensor& t, double absent) {
  return t.defined() ? Values{t.raw(), t.dtype() == float64, absent}
                     : Values{nullptr, false, absent};
}

/// A writable array of float32 or float64 numbers. Without data, written numbers are discarded.
struct Target {
  void* data = nullptr;
  bool wide = false;

  __device__ void put(std::int64_t i, double value) const {
    if (data == nullptr) return;
    if (wide) static_cast<double*>(data)[i] = value;
    else static_cast<float*>(data)[i] = static_cast<float>(value);
  }
};

inline Target target_of(const Tensor& t) {
  return t.defined() ? Target{t.raw(), t.dtype() == float64} : Target{};
}

/// Returns whether `t` is undefined or begins at a multiple of 16 bytes, as a Pack must.
inline bool is_aligned(const Tensor& t) {
  return !t.defined() || reinterpret_cast<std::uintptr_t>(t.raw()) % 16 == 0;
}

}  // namespace tutti::kernels::cuda
