// The decoders of the image formats, for decode_image(). They need libjpeg and libpng; a build
// without these compiles unavailable.cpp instead.
#pragma once

#include "decode_image.h"

#include <utility>

namespace tutti::data {

/// An image as its file stores it: uint8 (height, width, 1 or 3).
struct DecodedImage {
  Tensor pixels;
  int orientation = 1;  ///< of EXIF: 1 to 8, where 1 stands for upright
};

/// Decodes a JPEG file. Throws a DataError that does not name the file.
DecodedImage decode_jpeg(std::span<const std::uint8_t> bytes, const DecodeOptions& options);
/// Decodes a PNG file. Throws a DataError that does not name the file.
DecodedImage decode_png(std::span<const std::uint8_t> bytes, const DecodeOptions& options);

/// Decodes the grey levels or palette indices of a PNG file (read_mask). Throws a DataError that
/// does not name the file.
DecodedImage decode_png_values(std::span<const std::uint8_t> bytes, const DecodeOptions& options);

/// Do what read_image() and read_mask() do, but return the pixels as the file stores them.
DecodedImage read_stored_image(const std::string& path, const DecodeOptions& options);
DecodedImage read_stored_mask(const std::string& path, const DecodeOptions& options);
/// Returns the upright image. EXIF counts the ways to mirror and to turn an image from 1 to 8.
Tensor upright(const Tensor& pixels, int orientation);

/// Returns the height and width that a JPEG or PNG file claims, reading its markers alone; zeros
/// where there are none.
std::pair<std::int64_t, std::int64_t> stored_size(const std::string& path);

/// Returns the orientation that EXIF data (a TIFF structure) holds: 1 to 8. Data that are broken or
/// say nothing count as 1, because an image is worth more than its metadata.
int exif_orientation(std::span<const std::uint8_t> tiff);

/// Throws a DataError if the size is empty or has more than options.max_pixels pixels, also when
/// its shorter side is scaled to options.min_size.
void check_image_size(std::int64_t width, std::int64_t height, const DecodeOptions& options);

}  // namespace tutti::data
