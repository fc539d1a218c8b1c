// png_address(): pictures inside of a page. PNG is written here and not by libpng, so that the
// trainer writes the same page where it was built without image files.
#include "html.h"

#include <tutti/data/transforms/resize.h>

#include <zlib.h>

#include <algorithm>

namespace tutti::examples {
namespace {

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xFF);
  return bytes;
}

// A part of a PNG file: its length, its type and its data, followed by their checksum.
std::string chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  const uLong checksum =
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<std::uint32_t>(data.size())) + body +
         big_endian(static_cast<std::uint32_t>(checksum));
}

std::string deflate(const std::string& bytes) {
  uLongf size = compressBound(static_cast<uLong>(bytes.size()));
  std::string packed(size, '\0');
  compress2(reinterpret_cast<Bytef*>(packed.data()), &size,
            reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uLong>(bytes.size()),
            Z_BEST_COMPRESSION);
  packed.resize(size);
  return packed;
}

// `image` is contiguous.
std::string to_png(const Tensor& image) {
  const std::int64_t height = image.size(0), stride = image.size(1) * image.size(2);
  std::string lines;
  for (std::int64_t y = 0; y < height; ++y) {
    lines += '\0';  // no filter
    lines.append(reinterpret_cast<const char*>(image.data<std::uint8_t>()) + y * stride,
                 static_cast<std::size_t>(stride));
  }
  const char color = image.size(2) == 1 ? 0 : 2;
  const std::string header = big_endian(static_cast<std::uint32_t>(image.size(1))) +
                             big_endian(static_cast<std::uint32_t>(height)) +
                             std::string{8, color, 0, 0, 0};
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", deflate(lines)) +
         chunk("IEND", "");
}

std::string base64(const std::string& bytes) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k)
      out += i + k <= bytes.size() ? digits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

}  // namespace

std::string png_address(const Tensor& image, std::int64_t most) {
  const std::int64_t height = image.size(0), width = image.size(1),
                     longest = std::max(height, width);
  const auto scaled = [&](std::int64_t side) {
    return std::max<std::int64_t>(1, side * most / longest);
  };
  const Tensor small = longest <= most ? image.contiguous()
                                       : data::resize(image, scaled(height), scaled(width));
  return "data:image/png;base64," + base64(to_png(small));
}

}  // namespace tutti::examples
