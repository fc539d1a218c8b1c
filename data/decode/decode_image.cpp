#include "decode_image.h"

#include "../../core/create.h"
#include "../data_file.h"
#include "formats.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>
#include <vector>

namespace tutti::data {
namespace {

bool starts_with(std::span<const std::uint8_t> bytes, std::string_view signature,
                 std::size_t at = 0) {
  return bytes.size() >= at + signature.size() &&
         std::memcmp(bytes.data() + at, signature.data(), signature.size()) == 0;
}

bool is_jpeg(std::span<const std::uint8_t> bytes) { return starts_with(bytes, "\xFF\xD8\xFF"); }
bool is_png(std::span<const std::uint8_t> bytes) { return starts_with(bytes, "\x89PNG\r\n\x1A\n"); }

// Throws for bytes that are neither JPEG nor PNG, and says what they are where that is known.
[[noreturn]] void fail_unknown_format(std::span<const std::uint8_t> bytes) {
  if (bytes.empty()) fail<DataError>("the file is empty; expected a JPEG or PNG image");
  const char* const found =
      starts_with(bytes, "GIF8")                                             ? "a GIF image"
      : starts_with(bytes, "BM")                                             ? "a BMP image"
      : starts_with(bytes, "WEBP", 8)                                        ? "a WebP image"
      : starts_with(bytes, "II*\0") || starts_with(bytes, "MM\0*")           ? "a TIFF image"
      : starts_with(bytes, "ftypavi", 4)                                     ? "an AVIF image"
      : starts_with(bytes, "ftyphe", 4) || starts_with(bytes, "ftypmif1", 4) ? "a HEIC image"
      : starts_with(bytes, "jP  ", 4) || starts_with(bytes, "\xFF\x4F\xFF\x51")
          ? "a JPEG 2000 image"
      : starts_with(bytes, "\xFF\x0A") || starts_with(bytes, "JXL ", 4) ? "a JPEG XL image"
      : starts_with(bytes, "P5\n") || starts_with(bytes, "P6\n")        ? "a PGM or PPM image"
      : starts_with(bytes, "%PDF-")                                     ? "a PDF document"
                                                                        : nullptr;
  if (found) fail<DataError>("expected a JPEG or PNG image, found {}; convert it", found);
  const auto text = std::ranges::find_if_not(bytes, [](std::uint8_t b) { return std::isspace(b); });
  if (text != bytes.end() && *text == '<')
    fail<DataError>("expected a JPEG or PNG image, found HTML or XML, as a failed download leaves");
  if (starts_with(bytes, "version https://"))
    fail<DataError>("expected a JPEG or PNG image, found a pointer of git-lfs; run git lfs pull");
  fail<DataError>("expected a JPEG or PNG image, but the first byte is {:#04x}", bytes[0]);
}

// Returns the luminance of an RGB pixel, in fixed-point numbers as PIL computes it: the weights are
// those of ITU-R 601.
std::uint8_t grey_of(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >>
                                   16);
}

// Returns the pixels with 1 or 3 channels.
Tensor with_channels(const Tensor& pixels, int channels) {
  const std::int64_t from = pixels.size(2), count = pixels.size(0) * pixels.size(1);
  if (from == channels) return pixels;
  const Tensor result = empty({pixels.size(0), pixels.size(1), channels}, {.dtype = uint8});
  const std::uint8_t* in = pixels.data<std::uint8_t>();
  std::uint8_t* out = result.data<std::uint8_t>();
  for (std::int64_t i = 0; i < count; ++i, in += from, out += channels) {
    if (channels == 3) out[0] = out[1] = out[2] = in[0];
    else out[0] = grey_of(in);
  }
  return result;
}

void check_options(const DecodeOptions& options) {
  if (options.channels != 1 && options.channels != 3)
    fail<ValueError>("decode_image: expected 1 or 3 channels, got {}", options.channels);
  if (options.min_size < 0 || options.max_pixels < 1)
    fail<ValueError>(
        "decode_image: expected a min_size of at least 0 and a max_pixels of at least 1, got {} "
        "and {}",
        options.min_size, options.max_pixels);
}

// Reads a whole file. Its first bytes are read alone, so that a large file that is no image costs
// nothing. Uncompressed, a pixel has at most 8 bytes; a larger file is not an image that may pass.
std::vector<std::uint8_t> read_file(const std::string& path, std::int64_t max_pixels) {
  // Opening a pipe or a terminal would wait for somebody to write to it.
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found)
    fail<DataError>("the file does not exist");
  if (error) fail_unreadable("cannot open the file", error.value());
  if (!std::filesystem::is_regular_file(status)) fail<DataError>("it is not a regular file");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (!file) fail_unreadable("cannot open the file", errno);
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, error));
  if (error) fail_unreadable("cannot read the file", error.value());
  std::vector<std::uint8_t> bytes(16);
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file.get()));
  if (!is_jpeg(bytes) && !is_png(bytes)) fail_unknown_format(bytes);
  if (size / 8 - 131'072 > max_pixels)  // room for metadata: 1 MiB
    fail<DataError>("the file has {} bytes, more than an image of {} pixels needs", size,
                    max_pixels);
  const std::size_t head = bytes.size();
  bytes.resize(std::max(static_cast<std::size_t>(size), head));
  bytes.resize(head + std::fread(bytes.data() + head, 1, bytes.size() - head, file.get()));
  if (std::ferror(file.get())) fail_unreadable("cannot read the file", errno);
  return bytes;
}

// Reads numbers of a TIFF structure, whose header says in which order their bytes are. A number
// beyond the end is 0.
struct TiffReader {
  std::span<const std::uint8_t> bytes;
  bool big_endian = false;

  std::uint32_t read(std::size_t at, std::size_t width) const {
    if (at > bytes.size() || bytes.size() - at < width) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < width; ++i)
      value = value << 8 | bytes[big_endian ? at + i : at + width - 1 - i];
    return value;
  }
};

}  // namespace

Tensor upright(const Tensor& pixels, int orientation) {
  if (orientation == 1) return pixels;
  const bool transposed = orientation >= 5;
  const bool rows_reversed = orientation == 3 || orientation == 4 || orientation == 6 ||
                             orientation == 7;
  const bool columns_reversed = orientation == 2 || orientation == 3 || orientation == 7 ||
                                orientation == 8;
  const std::int64_t rows = pixels.size(0), columns = pixels.size(1), channels = pixels.size(2);
  const std::int64_t height = transposed ? columns : rows, width = transposed ? rows : columns;
  const Tensor result = empty({height, width, channels}, {.dtype = uint8});
  const std::uint8_t* const in = pixels.data<std::uint8_t>();
  std::uint8_t* out = result.data<std::uint8_t>();
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x, out += channels) {
      std::int64_t row = transposed ? x : y, column = transposed ? y : x;
      if (rows_reversed) row = rows - 1 - row;
      if (columns_reversed) column = columns - 1 - column;
      std::copy_n(in + (row * columns + column) * channels, channels, out);
    }
  return result;
}

void check_image_size(std::int64_t width, std::int64_t height, const DecodeOptions& options) {
  const std::int64_t max_pixels = options.max_pixels;
  if (width < 1 || height < 1) fail<DataError>("the image is empty: {} x {} pixels", width, height);
  if (width > max_pixels / height)
    fail<DataError>(
        "the image claims {} x {} pixels, more than {} in all (max_pixels); scale the file down",
        width, height, max_pixels);
  const auto [shorter, longer] = std::minmax(width, height);
  const double scale = static_cast<double>(options.min_size) / static_cast<double>(shorter);
  if (scale * scale * static_cast<double>(shorter) * static_cast<double>(longer) >
      static_cast<double>(max_pixels))
    fail<DataError>(
        "the image has {} x {} pixels: with a shorter side of {} it would have more than {} in all",
        width, height, options.min_size, max_pixels);
}

namespace {

DecodedImage decode_stored(std::span<const std::uint8_t> bytes, const DecodeOptions& options) {
  check_options(options);
  if (!is_jpeg(bytes) && !is_png(bytes)) fail_unknown_format(bytes);
  DecodedImage image = is_jpeg(bytes) ? decode_jpeg(bytes, options) : decode_png(bytes, options);
  image.pixels = with_channels(image.pixels, options.channels);
  return image;
}

Tensor oriented(const DecodedImage& image, const DecodeOptions& options) {
  return upright(image.pixels, options.apply_orientation ? image.orientation : 1);
}

// Returns decode(the bytes of a file). An error begins with the path.
template <class Decode>
DecodedImage decode_file(const std::string& path, const DecodeOptions& options,
                         const Decode& decode) {
  try {
    return decode(read_file(path, options.max_pixels), options);
  } catch (const DataError& error) {
    fail<DataError>("{}: {}", path, error.what());
  } catch (const FileError& error) {
    fail<FileError>("{}: {}", path, error.what());
  }
}

DecodedImage decode_mask(std::span<const std::uint8_t> bytes, const DecodeOptions& options) {
  if (is_jpeg(bytes))
    fail<DataError>(
        "expected a PNG as a mask, found a JPEG, whose compression changes the classes; write "
        "masks as PNG files");
  return decode_png_values(bytes, options);
}

}  // namespace

Tensor decode_image(std::span<const std::uint8_t> bytes, const DecodeOptions& options) {
  return oriented(decode_stored(bytes, options), options);
}

DecodedImage read_stored_image(const std::string& path, const DecodeOptions& options) {
  return decode_file(path, options, decode_stored);
}

DecodedImage read_stored_mask(const std::string& path, const DecodeOptions& options) {
  return decode_file(path, options, decode_mask);
}

Tensor read_image(const std::string& path, const DecodeOptions& options) {
  return oriented(read_stored_image(path, options), options);
}

Tensor read_mask(const std::string& path, const DecodeOptions& options) {
  return oriented(read_stored_mask(path, options), options);
}

int read_orientation(const std::string& path) { return read_stored_image(path, {}).orientation; }

// The segments of a JPEG file before its size may be long, and are skipped without being read.
std::pair<std::int64_t, std::int64_t> stored_size(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<std::uint8_t, 24> bytes{};
  const auto read = [&](std::size_t count) {
    return static_cast<bool>(
        file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(count)));
  };
  const TiffReader number{bytes, true};
  if (!read(bytes.size())) return {};
  if (is_png(bytes)) return {number.read(20, 4), number.read(16, 4)};
  if (!is_jpeg(bytes)) return {};
  file.seekg(2);
  for (int tries = 0; tries < 10'000 && read(9); ++tries) {  // marker, length, precision, sizes
    const int marker = bytes[1];
    const bool is_marker = bytes[0] == 0xFF && marker > 0 && marker < 0xFF,
               has_size = marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 &&
                          marker != 0xCC;
    if (is_marker && has_size) return {number.read(5, 2), number.read(7, 2)};
    const auto length = static_cast<std::streamoff>(number.read(2, 2));
    file.seekg(is_marker ? length - 7 : -8, std::ios::cur);  // or past a surplus byte
  }
  return {};
}

int exif_orientation(std::span<const std::uint8_t> tiff) {
  constexpr std::uint32_t orientation_tag = 0x0112, type_short = 3, type_long = 4;
  if (tiff.size() < 8) return 1;
  const TiffReader reader{tiff, tiff[0] == 'M'};
  if (reader.read(2, 2) != 42) return 1;
  const std::size_t directory = reader.read(4, 4), entries = reader.read(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + 12 * i;  // tag, type, count, value
    if (reader.read(entry, 2) != orientation_tag) continue;
    const std::uint32_t type = reader.read(entry + 2, 2);
    if (type != type_short && type != type_long) return 1;
    const std::uint32_t value = reader.read(entry + 8, type == type_short ? 2 : 4);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace tutti::data
