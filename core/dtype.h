// DType lists the element types, with their names, sizes and C++ types, and `dispatch` turns a
// DType at run time into a C++ type at compile time. bfloat16 and float16 are storage types:
// kernels convert them to float32 and compute in that.
#pragma once

#include "error.h"

#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>

namespace tutti {

/// The type of the elements of a tensor.
enum class DType : std::uint8_t { float32, float64, bfloat16, float16, int64, uint8, boolean };

inline constexpr DType float32 = DType::float32;
inline constexpr DType float64 = DType::float64;
inline constexpr DType bfloat16 = DType::bfloat16;
inline constexpr DType float16 = DType::float16;
inline constexpr DType int64 = DType::int64;
inline constexpr DType uint8 = DType::uint8;
inline constexpr DType boolean = DType::boolean;

/// BFloat16 is the upper half of a float32. Conversion rounds to nearest even and keeps NaN a NaN.
struct BFloat16 {
  std::uint16_t bits = 0;
  BFloat16() = default;
  BFloat16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    bits = value != value ? static_cast<std::uint16_t>((u >> 16) | 0x40u)
                          : static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// Float16 is IEEE binary16. Conversion rounds to nearest even.
struct Float16 {
  std::uint16_t bits = 0;
  Float16() = default;
  Float16(float value) : bits(encode(value)) {}
  operator float() const { return decode(bits); }

  static std::uint16_t encode(float value);
  static float decode(std::uint16_t bits);
};

/// Returns the size of an element in bytes.
std::size_t size_of(DType dtype);
/// Returns whether the dtype is one of the four floating-point types.
bool is_floating(DType dtype);
/// Returns "float32", ..., "bool".
std::string to_string(DType dtype);
/// Parses a name that to_string() returns. Throws a ValueError that lists the names for any other.
DType dtype_from_string(const std::string& name);

/// Returns the dtype in which sums over `dtype` are computed and stored: float32 for the 16-bit
/// types, else `dtype` itself.
inline DType accumulate_dtype(DType dtype) {
  return dtype == bfloat16 || dtype == float16 ? float32 : dtype;
}

// clang-format off
template <class T> struct dtype_of;
template <> struct dtype_of<float>        { static constexpr DType value = DType::float32; };
template <> struct dtype_of<double>       { static constexpr DType value = DType::float64; };
template <> struct dtype_of<BFloat16>     { static constexpr DType value = DType::bfloat16; };
template <> struct dtype_of<Float16>      { static constexpr DType value = DType::float16; };
template <> struct dtype_of<std::int64_t> { static constexpr DType value = DType::int64; };
template <> struct dtype_of<std::uint8_t> { static constexpr DType value = DType::uint8; };
template <> struct dtype_of<bool>         { static constexpr DType value = DType::boolean; };
// clang-format on

/// Accumulate is accumulate_dtype for C++ types: the type in which floating elements of type T are
/// computed and summed.
template <class T>
using Accumulate = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Types is a list of element types for `dispatch`.
template <class... T>
struct Types {};
/// The types that reference code computes in.
using FloatTypes = Types<float, double>;
/// The types that CPU kernels train in.
using RealTypes = Types<float, double, BFloat16>;
/// All types of elements.
using AllTypes = Types<float, double, BFloat16, Float16, std::int64_t, std::uint8_t, bool>;

/// Calls `body.operator()<T>()` with the T of the list whose dtype is `dtype`. Throws a DTypeError
/// that names `op` if the list has no such type.
/// @code
///   dispatch(RealTypes{}, x.dtype(), "relu", [&]<class T>() { ... });
/// @endcode
template <class... T, class Body>
void dispatch(Types<T...>, DType dtype, const char* op, Body&& body) {
  const bool found =
      ((dtype_of<T>::value == dtype && (body.template operator()<T>(), true)) || ...);
  if (found) return;
  std::string expected;
  ((expected += (expected.empty() ? "" : ", ") + to_string(dtype_of<T>::value)), ...);
  throw DTypeError(op + (": cannot compute in " + to_string(dtype)) +
                   " on this device (expected one of " + expected + "); convert with .to(dtype)");
}

}  // namespace tutti
