// The types that kernels compute in, and conversion between element types, written once for the CPU
// and for CUDA kernels.
#pragma once

#include "../core/dtype.h"
#include "../core/host_device.h"
#include "../core/saturating_cast.h"

#include <type_traits>

namespace tutti::kernels {

/// Whether T is a floating type of 16 bits, which converts to and from float only. cuda/element.h
/// adds the device's types.
template <class T>
inline constexpr bool is_16_bit_float = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

/// The type in which elements of type T are computed: float for the 16-bit types, int64 for the
/// integers.
template <class T>
using ComputeType = std::conditional_t<is_16_bit_float<T>, float,
                                       std::conditional_t<std::is_integral_v<T>, std::int64_t, T>>;

/// Converts between any two element types, through float only where a 16-bit type is involved.
/// Conversion to bool returns whether the value is not zero; floating numbers become integers by
/// saturating_cast.
template <class To, class From>
TUTTI_HOST_DEVICE inline To convert(From value) {
  if constexpr (std::is_same_v<To, From>) return value;
  else if constexpr (is_16_bit_float<From>) return convert<To>(static_cast<float>(value));
  else if constexpr (std::is_same_v<To, bool>) return value != From(0);
  else if constexpr (is_16_bit_float<To>) return To(static_cast<float>(value));
  else return saturating_cast<To>(value);
}

/// Calls body.operator()<flag>(), for a kernel that is compiled for both values.
template <class Body>
void dispatch_flag(bool flag, const Body& body) {
  flag ? body.template operator()<true>() : body.template operator()<false>();
}

/// Calls body.operator()<C>() with the type through which elements of dtype `from` become elements
/// of dtype `to`: int64 between integers, float where it holds both exactly, else double.
template <class Body>
void dispatch_conversion(DType from, DType to, const Body& body) {
  const auto fits_float = [](DType dtype) { return dtype != float64 && dtype != int64; };
  if (!is_floating(from) && !is_floating(to)) body.template operator()<std::int64_t>();
  else if (fits_float(from) && fits_float(to)) body.template operator()<float>();
  else body.template operator()<double>();
}

/// Calls body.operator()<U>() with the unsigned integer of `bytes` bytes. Kernels that only move
/// elements are compiled for the four widths instead of every dtype.
template <class Body>
void dispatch_width(std::size_t bytes, const Body& body) {
  switch (bytes) {
    case 1: return body.template operator()<std::uint8_t>();
    case 2: return body.template operator()<std::uint16_t>();
    case 4: return body.template operator()<std::uint32_t>();
    default: return body.template operator()<std::uint64_t>();
  }
}

}  // namespace tutti::kernels
