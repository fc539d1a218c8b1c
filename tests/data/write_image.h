// Writers of PNG and JPEG files for tests that need pictures of their own. The library only reads.
#pragma once

#include <tutti/core/tensor.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

#include <jpeglib.h>
#include <png.h>

namespace tutti::test {

/// Writes a uint8 image (height, width, 3).
inline void write_png(const std::string& path, const Tensor& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(image.size(0));
  png.width = static_cast<png_uint_32>(image.size(1));
  png.format = PNG_FORMAT_RGB;
  if (!png_image_write_to_file(&png, path.c_str(), 0, image.raw(), 0, nullptr))
    throw std::runtime_error("cannot write " + path + ": " + png.message);
}

/// Returns EXIF data (a TIFF structure) with an orientation.
inline std::array<std::uint8_t, 26> exif_with_orientation(int orientation) {
  return {'M',  'M',  0, 42, 0, 0, 0, 8, 0, 1,
          0x01, 0x12, 0, 3,  0, 0, 0, 1, 0, static_cast<std::uint8_t>(orientation)};
}

/// Writes a uint8 image (height, width, 3). libjpeg ends the program where that fails.
inline void write_jpeg(const std::string& path, const Tensor& image, int quality = 90,
                       int orientation = 1) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (!file) throw std::runtime_error("cannot write " + path);
  jpeg_error_mgr errors{};
  jpeg_compress_struct jpeg{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  jpeg_stdio_dest(&jpeg, file);
  jpeg.image_height = static_cast<JDIMENSION>(image.size(0));
  jpeg.image_width = static_cast<JDIMENSION>(image.size(1));
  jpeg.input_components = 3;
  jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, quality, TRUE);
  jpeg_start_compress(&jpeg, TRUE);
  if (orientation != 1) {
    std::string marker("Exif\0", 6);
    for (const std::uint8_t byte : exif_with_orientation(orientation))
      marker += static_cast<char>(byte);
    jpeg_write_marker(&jpeg, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(marker.data()),
                      static_cast<unsigned>(marker.size()));
  }
  const Tensor pixels = image.contiguous();
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW row = pixels.data<std::uint8_t>() +
                   std::size_t{jpeg.next_scanline} * jpeg.image_width * 3;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::fclose(file);
}

}  // namespace tutti::test
