// decode_image() turns the bytes of a JPEG or PNG file into an image, and read_image() does the
// same for a file. What the bytes are is decided by their content, never by the name of the file.
#pragma once

#include "../../core/tensor.h"

#include <cstdint>
#include <span>
#include <string>

namespace tutti::data {

/// How an image is decoded.
struct DecodeOptions {
  /// 3 for RGB, 1 for grey. Grey images become RGB by repetition; colours become grey by the
  /// weights of ITU-R 601, as in PIL.
  int channels = 3;
  /// A JPEG is decoded at 1/2, 1/4 or 1/8 of its size, which costs less, where both sides then
  /// still have at least `min_size` pixels. 0 decodes every image at its full size. An image so
  /// narrow that it would have more than `max_pixels` with a shorter side of this size is refused.
  std::int64_t min_size = 0;
  /// An image that claims more pixels is refused before memory is allocated for them. The default
  /// is where PIL refuses an image, too.
  std::int64_t max_pixels = 178'956'970;
  /// Whether the image is turned and mirrored as its EXIF orientation says.
  bool apply_orientation = true;
};

/// Decodes a JPEG or PNG file in memory to uint8 (height, width, channels). The colours are those
/// of PIL's `Image.convert("RGB")`: the alpha channel is dropped, not composed with a background;
/// CMYK is taken as inverted, as Adobe's programs write it; of 16 bits the upper 8 are kept; colour
/// profiles are ignored. Throws a DataError that says what is wrong with the file, and a ValueError
/// for options out of range.
Tensor decode_image(std::span<const std::uint8_t> bytes, const DecodeOptions& options = {});

/// Decodes a file. Throws as decode_image() does, with the path in front of the message; a
/// DataError for a path that is missing, not permitted or no regular file; and a FileError where
/// the system cannot read the file at the moment (no free descriptor, a disk that fails).
Tensor read_image(const std::string& path, const DecodeOptions& options = {});

/// Returns the EXIF orientation of an image file, by which read_image() turns and mirrors it: 1 to
/// 8, where 1 stands for upright. Throws as read_image() does.
int read_orientation(const std::string& path);

/// Decodes a PNG file that holds the class of each pixel to uint8 (height, width, 1): grey levels
/// of 1 to 16 bits as they are, or the indices of a palette, never its colours. Throws as
/// read_image() does; also for another format, for colours or transparency, and for a value above
/// 255. Of the options `max_pixels` and `apply_orientation` are read. A mask is turned by its own
/// EXIF data, which most masks lack; those of its picture are SegmentationFolder's business.
Tensor read_mask(const std::string& path, const DecodeOptions& options = {});

}  // namespace tutti::data
