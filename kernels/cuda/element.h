// This file loads and stores elements of any dtype as the type that kernels compute in. The dtype
// is a run-time value, the same for a whole launch. These kernels are bound by memory bandwidth, so
// one compiled kernel serves all dtypes. Kernels whose dtype is a template parameter use vector.h.
#pragma once

#include "../element_types.h"
#include "offset_calculator.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace tutti::detail {

template <>
inline constexpr bool is_16_bit_float<__nv_bfloat16> = true;
template <>
inline constexpr bool is_16_bit_float<__half> = true;

}  // namespace tutti::detail

namespace tutti::kernels::cuda {

/// The first index of the calling thread in a grid-stride loop; index_step() is the stride.
__device__ inline std::int64_t first_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t index_step() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

/// Implements the mathematical functions of kernels/operations.h with CUDA's.
struct Math {
  // clang-format off
  template <class T> TUTTI_HOST_DEVICE static T abs(T x) { return ::fabs(x); }
  template <class T> TUTTI_HOST_DEVICE static T exp(T x) { return ::exp(x); }
  template <class T> TUTTI_HOST_DEVICE static T log(T x) { return ::log(x); }
  template <class T> TUTTI_HOST_DEVICE static T sqrt(T x) { return ::sqrt(x); }
  template <class T> TUTTI_HOST_DEVICE static T sin(T x) { return ::sin(x); }
  template <class T> TUTTI_HOST_DEVICE static T cos(T x) { return ::cos(x); }
  template <class T> TUTTI_HOST_DEVICE static T tanh(T x) { return ::tanh(x); }
  template <class T> TUTTI_HOST_DEVICE static T floor(T x) { return ::floor(x); }
  template <class T> TUTTI_HOST_DEVICE static T ceil(T x) { return ::ceil(x); }
  template <class T> TUTTI_HOST_DEVICE static T rint(T x) { return ::rint(x); }
  template <class T> TUTTI_HOST_DEVICE static T pow(T x, T y) { return ::pow(x, y); }
  // clang-format on
};

/// The dtypes that a GPU trains in.
using TrainTypes = Types<float, double, BFloat16, Float16>;

/// CUDA's own type for elements of type T.
template <class T>
using DeviceType = std::conditional_t<std::is_same_v<T, BFloat16>, __nv_bfloat16,
                                      std::conditional_t<std::is_same_v<T, Float16>, __half, T>>;

/// A pointer and the dtype of the elements that it points to.
struct TypedPointer {
  void* base = nullptr;
  DType dtype = DType::float32;
  TypedPointer() = default;
  explicit TypedPointer(const Tensor& x) : base(x.raw()), dtype(x.dtype()) {}
};

/// N elements that a thread loads or stores at once.
template <class T, int N = OffsetCalculator::vector_size>
struct alignas(N * sizeof(T)) AlignedVector {
  T elements[N];
};

/// The elements of a unit of work, in the compute type.
template <class C>
using UnitValues = C[OffsetCalculator::vector_size];

/// Calls body(T{}) with CUDA's type T for a dtype. bool is read and written as bytes of 0 and 1.
template <class Body>
__device__ inline void dispatch_on_device(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::float32: return body(float{});
    case DType::float64: return body(double{});
    case DType::bfloat16: return body(__nv_bfloat16{});
    case DType::float16: return body(__half{});
    case DType::int64: return body(std::int64_t{});
    case DType::uint8: return body(std::uint8_t{});
    case DType::boolean: return body(bool{});
  }
}

/// Loads `count` elements from offset `at` on and converts them to type C. If the tensor is
/// `constant`, it repeats one element.
template <class C, class T>
__device__ inline void load_elements(const T* from, int count, bool constant,
                                     UnitValues<C>& values) {
  constexpr int size = OffsetCalculator::vector_size;
  if (constant) {
    const C value = convert<C>(*from);
    for (C& v : values) v = value;
  } else if (count == size) {
    const auto vector = *reinterpret_cast<const AlignedVector<T>*>(from);
#pragma unroll
    for (int j = 0; j < size; ++j) values[j] = convert<C>(vector.elements[j]);
  } else {
#pragma unroll
    for (int j = 0; j < size; ++j) values[j] = j < count ? convert<C>(from[j]) : C(0);
  }
}

/// Stores the first `count` values as elements of type T.
template <class T, class C>
__device__ inline void store_elements(T* to, int count, const UnitValues<C>& values) {
  constexpr int size = OffsetCalculator::vector_size;
  if (count == size) {
    AlignedVector<T> vector;
#pragma unroll
    for (int j = 0; j < size; ++j) vector.elements[j] = convert<T>(values[j]);
    *reinterpret_cast<AlignedVector<T>*>(to) = vector;
  } else {
#pragma unroll
    for (int j = 0; j < size; ++j)
      if (j < count) to[j] = convert<T>(values[j]);
  }
}

/// Loads elements from offset `at` on with load_elements, for the tensor's dtype.
template <class C>
__device__ inline void load(const TypedPointer& x, std::int64_t at, int count, bool constant,
                            UnitValues<C>& values) {
  dispatch_on_device(x.dtype, [&](auto zero) {
    load_elements<C>(static_cast<const decltype(zero)*>(x.base) + at, count, constant, values);
  });
}

/// Stores elements from offset `at` on with store_elements, in the tensor's dtype.
template <class C>
__device__ inline void store(const TypedPointer& x, std::int64_t at, int count,
                             const UnitValues<C>& values) {
  dispatch_on_device(x.dtype, [&](auto zero) {
    store_elements<decltype(zero), C>(static_cast<decltype(zero)*>(x.base) + at, count, values);
  });
}

/// Loads and stores one element.
template <class C>
__device__ inline C load_one(const TypedPointer& x, std::int64_t at) {
  C value{};
  dispatch_on_device(x.dtype, [&](auto zero) {
    value = convert<C>(static_cast<const decltype(zero)*>(x.base)[at]);
  });
  return value;
}
template <class C>
__device__ inline void store_one(const TypedPointer& x, std::int64_t at, C value) {
  dispatch_on_device(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    static_cast<T*>(x.base)[at] = convert<T>(value);
  });
}

}  // namespace tutti::kernels::cuda
