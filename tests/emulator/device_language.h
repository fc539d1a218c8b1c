// Defines what nvcc knows without an include: the keywords of CUDA C++, built-in variables,
// barriers, shuffles, atomics and intrinsics, as far as the project's kernels use them. The
// compiler includes this header before every .cu file (-include).
#pragma once

#include "emulator.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
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
T atomicExch(T* at, std::type_identity_t<T> to) {
  return emulator::atomically(at, [&](T) { return to; });
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
T __ldcg(const T* from) {
  return *from;
}

// ---- numbers

inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
