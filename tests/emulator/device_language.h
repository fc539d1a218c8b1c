// Defines what nvcc knows without an include: the keywords of CUDA C++, built-in variables,
// barriers, shuffles, atomics and intrinsics, as far as the project's kernels use them. The
// compiler includes this header before every .cu file (-include).
#pragma once

#include "emulator.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

// CUDA's headers define the other keywords (__global__, __device__, ...) as nothing for a compiler
// that is not nvcc.
#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
constexpr int warpSize = 32;

using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;
using std::signbit;

// ---- barriers and warps. The emulator tells barriers apart by their place in the source: threads
// of a block that wait at two of them are an error.

inline void __syncthreads(emulator::Location at = emulator::Location::current()) {
  emulator::block_barrier(at);
}
inline void __syncwarp(unsigned mask = ~0u, emulator::Location at = emulator::Location::current()) {
  emulator::warp_barrier(mask, at);
}
inline void __threadfence(emulator::Location at = emulator::Location::current()) {
  emulator::fence(at);
}
inline void __threadfence_system(emulator::Location at = emulator::Location::current()) {
  emulator::fence(at);
}

namespace emulator {

template <class T>
T value_of_lane(const WarpValues& all, int lane, Location at) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= WarpValues::stride);
  if ((all.lanes >> lane & 1) == 0)
    fatal("a shuffle reads lane " + std::to_string(lane) + ", which the block does not have, in " +
          at.file_name() + ":" + std::to_string(at.line()));
  T value;
  std::memcpy(&value, all.slots + static_cast<std::size_t>(lane) * WarpValues::stride, sizeof(T));
  return value;
}

template <class T>
T shuffle(unsigned mask, const T& value, int source, Location at) {
  return value_of_lane<T>(warp_exchange(mask, &value, sizeof(T), at), source, at);
}

inline std::uint32_t ballot(unsigned mask, bool value, Location at) {
  const WarpValues all = warp_exchange(mask, &value, sizeof(value), at);
  std::uint32_t bits = 0;
  for (int lane = 0; lane < 32; ++lane)
    if ((all.lanes >> lane & 1) != 0 && value_of_lane<bool>(all, lane, at)) bits |= 1u << lane;
  return bits;
}

}  // namespace emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              emulator::Location at = emulator::Location::current()) {
  const int lane = emulator::current_thread.lane;
  return emulator::shuffle(mask, value, (lane & ~(width - 1)) + (source & (width - 1)), at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                  emulator::Location at = emulator::Location::current()) {
  const int lane = emulator::current_thread.lane, source = lane ^ bits;
  return emulator::shuffle(mask, value, source / width <= lane / width ? source : lane, at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   emulator::Location at = emulator::Location::current()) {
  const int lane = emulator::current_thread.lane, source = lane + static_cast<int>(by);
  return emulator::shuffle(mask, value, source / width == lane / width ? source : lane, at);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32,
                 emulator::Location at = emulator::Location::current()) {
  const int lane = emulator::current_thread.lane, source = lane - static_cast<int>(by);
  return emulator::shuffle(mask, value,
                           source >= 0 && source / width == lane / width ? source : lane, at);
}
inline unsigned __ballot_sync(unsigned mask, bool value,
                              emulator::Location at = emulator::Location::current()) {
  return emulator::ballot(mask, value, at);
}
inline int __any_sync(unsigned mask, bool value,
                      emulator::Location at = emulator::Location::current()) {
  return emulator::ballot(mask, value, at) != 0;
}
inline int __all_sync(unsigned mask, bool value,
                      emulator::Location at = emulator::Location::current()) {
  return emulator::ballot(mask, !value, at) == 0;
}

// ---- atomics

namespace emulator {

template <class T, class F>
T atomically(T* at, F&& next) {
  std::atomic_ref<T> value(*at);
  T old = value.load();
  while (!value.compare_exchange_weak(old, next(old))) {}
  return old;
}

}  // namespace emulator

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> by) {
  return emulator::atomically(at, [&](T old) { return static_cast<T>(old + by); });
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> by) {
  return emulator::atomically(at, [&](T old) { return std::max(old, by); });
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> by) {
  return emulator::atomically(at, [&](T old) { return std::min(old, by); });
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> by) {
  return emulator::atomically(at, [&](T old) { return static_cast<T>(old | by); });
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> to) {
  return emulator::atomically(at, [&](T) { return to; });
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> to) {
  return emulator::atomically(at, [&](T old) { return old == expected ? to : old; });
}
inline unsigned atomicInc(unsigned* at, unsigned last) {
  return emulator::atomically(at, [&](unsigned old) { return old >= last ? 0 : old + 1; });
}

// ---- memory

template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
T __ldcv(const T* from) {
  return *from;
}
template <class T>
T __ldlu(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, std::type_identity_t<T> value) {
  *to = value;
}
template <class T>
void __stcg(T* to, std::type_identity_t<T> value) {
  *to = value;
}
template <class T>
void __stwt(T* to, std::type_identity_t<T> value) {
  *to = value;
}

// ---- numbers

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(unsigned x) { return std::countl_zero(x); }
inline int __clzll(unsigned long long x) { return std::countl_zero(x); }
inline int __ffs(unsigned x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
__extension__ using emulated_uint128 = unsigned __int128;
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<emulated_uint128>(a) * b >> 64);
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return std::isnan(x) ? 0 : std::clamp(x, 0.0f, 1.0f); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
