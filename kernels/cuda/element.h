// Elements of any dtype, read and written as the type that kernels compute in. The dtype is a
// run-time switch, uniform for a launch: these kernels wait for memory, and one compiled kernel
// serves all dtypes.
#pragma once

#include "layout.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace tutti::kernels::cuda {

// Grid-stride loops: where a thread begins, and how far apart its pieces of work are.
__device__ inline std::int64_t first_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t index_step() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

/// What elements of a dtype are computed in: float for the 16-bit types, int64 for the integers.
template <class T>
struct ComputeOf {
  using type = T;
};
template <>
struct ComputeOf<BFloat16> {
  using type = float;
};
template <>
struct ComputeOf<Float16> {
  using type = float;
};
template <>
struct ComputeOf<std::uint8_t> {
  using type = std::int64_t;
};
template <>
struct ComputeOf<bool> {
  using type = std::int64_t;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

/// The types that a GPU trains in.
using TrainTypes = Types<float, double, BFloat16, Float16>;

/// How the device spells a dtype.
template <class T>
struct DeviceTypeOf {
  using type = T;
};
template <>
struct DeviceTypeOf<BFloat16> {
  using type = __nv_bfloat16;
};
template <>
struct DeviceTypeOf<Float16> {
  using type = __half;
};
template <class T>
using DeviceType = typename DeviceTypeOf<T>::type;

template <class To, class From>
__device__ inline To convert(From value) {
  if constexpr (std::is_same_v<To, From>) return value;
  else if constexpr (std::is_same_v<From, __nv_bfloat16>)
    return convert<To>(__bfloat162float(value));
  else if constexpr (std::is_same_v<From, __half>) return convert<To>(__half2float(value));
  else if constexpr (std::is_same_v<To, __nv_bfloat16>)
    return __float2bfloat16(static_cast<float>(value));
  else if constexpr (std::is_same_v<To, __half>) return __float2half(static_cast<float>(value));
  else if constexpr (std::is_same_v<To, bool>) return value != From(0);
  else return static_cast<To>(value);
}

/// An operand of a kernel: where, and in which dtype.
struct Operand {
  void* base = nullptr;
  DType dtype = DType::float32;
  Operand() = default;
  explicit Operand(const Tensor& x) : base(x.raw()), dtype(x.dtype()) {}
};

/// What a thread loads or stores at once.
template <class T>
struct alignas(Layout::pack * sizeof(T)) Quad {
  T elements[Layout::pack];
};

/// Calls body(T{}) with the device's type of a dtype. bool is read and written as bytes of 0 and 1.
template <class Body>
__device__ inline void with_type(DType dtype, const Body& body) {
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

/// `count` elements from `at` on; one, repeated, where the operand is constant.
template <class C>
__device__ inline void load(const Operand& x, std::int64_t at, int count, bool constant,
                            C (&values)[Layout::pack]) {
  with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* from = static_cast<const T*>(x.base) + at;
    if (constant) {
      const C value = convert<C>(*from);
      for (C& v : values) v = value;
    } else if (count == Layout::pack) {
      const Quad<T> pack = *reinterpret_cast<const Quad<T>*>(from);
#pragma unroll
      for (int j = 0; j < Layout::pack; ++j) values[j] = convert<C>(pack.elements[j]);
    } else {
#pragma unroll
      for (int j = 0; j < Layout::pack; ++j) values[j] = j < count ? convert<C>(from[j]) : C(0);
    }
  });
}

template <class C>
__device__ inline void store(const Operand& x, std::int64_t at, int count,
                             const C (&values)[Layout::pack]) {
  with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* to = static_cast<T*>(x.base) + at;
    if (count == Layout::pack) {
      Quad<T> pack;
#pragma unroll
      for (int j = 0; j < Layout::pack; ++j) pack.elements[j] = convert<T>(values[j]);
      *reinterpret_cast<Quad<T>*>(to) = pack;
    } else {
#pragma unroll
      for (int j = 0; j < Layout::pack; ++j)
        if (j < count) to[j] = convert<T>(values[j]);
    }
  });
}

/// One element.
template <class C>
__device__ inline C load_one(const Operand& x, std::int64_t at) {
  C value{};
  with_type(x.dtype,
            [&](auto zero) { value = convert<C>(static_cast<const decltype(zero)*>(x.base)[at]); });
  return value;
}
template <class C>
__device__ inline void store_one(const Operand& x, std::int64_t at, C value) {
  with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    static_cast<T*>(x.base)[at] = convert<T>(value);
  });
}

}  // namespace tutti::kernels::cuda
