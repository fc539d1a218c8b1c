// grey_of() is the one conversion of colours to grey: PIL's, with the weights of ITU-R 601.
#pragma once

#include <cstdint>

namespace tutti::data {

/// Returns the luminance of an RGB pixel, in fixed-point numbers as PIL computes it.
inline std::uint8_t grey_of(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >>
                                   16);
}

}  // namespace tutti::data
