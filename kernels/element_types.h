// The types that kernels compute in, and calls of a body with one of them.
#pragma once

#include "../core/convert.h"

namespace tutti::kernels {

using tutti::detail::convert, tutti::detail::is_16_bit_float;

/// The type in which elements of type T are computed: float for the 16-bit types, int64 for the
/// integers.
template <class T>
using ComputeType = std::conditional_t<is_16_bit_float<T>, float,
                                       std::conditional_t<std::is_integral_v<T>, std::int64_t, T>>;

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
