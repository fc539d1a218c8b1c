// write_png() writes what the programs of segmentation make: pictures and masks. The library only
// reads files. Masks have a palette, so that a person sees their classes.
#pragma once

#include <tutti/core/error.h>
#include <tutti/core/tensor.h>

#include <png.h>

#include <array>
#include <cstdint>
#include <string>

namespace tutti::examples {

/// Returns the colour of a class, red, green and blue, as Pascal VOC's palette has it: class 0 is
/// black, and neighbours differ much.
inline std::array<std::uint8_t, 3> class_colour(int label) {
  std::array<std::uint8_t, 3> colour{};
  for (int bit = 7; label > 0; --bit, label >>= 3)
    for (std::size_t c = 0; c < 3; ++c)
      colour[c] = static_cast<std::uint8_t>(colour[c] | (label >> c & 1) << bit);
  return colour;
}

/// Writes a uint8 image (height, width, 3), or a mask (height, width, 1) with the colours of its
/// classes as palette. Throws a FileError that names the file.
inline void write_png(const std::string& path, const Tensor& pixels) {
  const bool is_mask = pixels.size(2) == 1;
  std::array<std::array<std::uint8_t, 3>, 256> palette;
  for (int label = 0; label < 256; ++label)
    palette[static_cast<std::size_t>(label)] = class_colour(label);
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(pixels.size(0));
  png.width = static_cast<png_uint_32>(pixels.size(1));
  png.format = is_mask ? PNG_FORMAT_RGB_COLORMAP : PNG_FORMAT_RGB;
  png.colormap_entries = is_mask ? 256 : 0;
  const Tensor rows = pixels.contiguous();
  if (!png_image_write_to_file(&png, path.c_str(), 0, rows.raw(), 0, palette.data()))
    fail<FileError>("cannot write '{}': {}", path, static_cast<const char*>(png.message));
}

}  // namespace tutti::examples
