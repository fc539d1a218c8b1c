// The decoders of the image formats, for decode_image(). They need libjpeg and libpng; a build
// without these compiles unavailable.cpp instead.
#pragma once

#include "decode_image.h"

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
Tensor decode_png_values(std::span<const std::uint8_t> bytes, const DecodeOptions& options);

/// Returns the orientation that EXIF data (a TIFF structure) holds: 1 to 8. Data that are broken or
/// say nothing count as 1, because an image is worth more than its metadata.
int exif_orientation(std::span<const std::uint8_t> tiff);

/// Throws a DataError if the size is empty or has more than options.max_pixels pixels, also when
/// its shorter side is scaled to options.min_size.
void check_image_size(std::int64_t width, std::int64_t height, const DecodeOptions& options);

}  // namespace tutti::data
