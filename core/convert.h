// Conversion between element types, written once for the CPU and for CUDA kernels. Floating numbers
// become integers with a defined result for every value: C++ leaves NaN and numbers out of range
// undefined, and processors differ.
#pragma once

#include "dtype.h"
#include "host_device.h"

#include <limits>
#include <type_traits>

namespace tutti {
namespace detail {

// The range of an integer type. Device code may read these constants, but not call numeric_limits.
template <class T>
inline constexpr T least_of =
    (std::numeric_limits<T>::min)();  // in parentheses, as host programs have macros
template <class T>
inline constexpr T most_of = (std::numeric_limits<T>::max)();

}  // namespace detail

/// Returns `value` as a To. A floating number is cut towards zero to an integer, one beyond the
/// range of To becomes the nearest end of the range, and NaN becomes 0. All other types convert as
/// in C++: an integer keeps its lowest bits in a narrower one.
template <class To, class From>
TUTTI_HOST_DEVICE constexpr To saturating_cast(From value) {
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To> &&
                !std::is_same_v<To, bool>) {
    // The largest integer of 64 bits rounds up to a power of two, which is out of range already.
    constexpr From low = static_cast<From>(detail::least_of<To>),
                   high = static_cast<From>(detail::most_of<To>);
    // Only numbers in range reach the conversion, so that a compiler may compute all three results
    // for every element of a vector.
    const To inside = static_cast<To>(value > low && value < high ? value : low);
    const To number = value >= high ? detail::most_of<To> : inside;
    return value == value ? number : To(0);
  } else {
    return static_cast<To>(value);
  }
}

namespace detail {

/// Whether T is a floating type of 16 bits, which converts to and from float only.
/// kernels/cuda/element.h adds the device's types.
template <class T>
inline constexpr bool is_16_bit_float = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

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

}  // namespace detail

}  // namespace tutti
