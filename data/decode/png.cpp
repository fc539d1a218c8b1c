// decode_png(): the calls of libpng. libpng reports errors by a function that must not return, so
// it jumps back to PngReader::guard(), which throws. No frame between the two has destructors to
// run.
#include "../../core/create.h"
#include "formats.h"

#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

namespace tutti::data {
namespace {

// Throws unless every chunk lies in the file: libpng allocates what a chunk of metadata claims
// before it reads a byte of it.
void check_chunks(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t signature = 8,
                        around = 12;  // length and name before a chunk, code after it
  for (std::size_t at = signature; bytes.size() >= at + around;) {
    const std::uint8_t* const head = bytes.data() + at;
    const std::size_t length = std::size_t{head[0]} << 24 | std::size_t{head[1]} << 16 |
                               std::size_t{head[2]} << 8 | head[3];
    if (length > bytes.size() - at - around)
      fail<DataError>("the PNG is corrupt or truncated: a chunk claims {} bytes, {} are left",
                      length, bytes.size() - at - around);
    if (std::memcmp(head + 4, "IEND", 4) == 0) return;
    at += around + length;
  }
}

class PngReader {
 public:
  explicit PngReader(std::span<const std::uint8_t> bytes) : rest_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, jump_back, ignore_warning);
    info_ = png_ ? png_create_info_struct(png_) : nullptr;
    if (info_) return;
    png_destroy_read_struct(&png_, &info_, nullptr);
    fail<OutOfMemoryError>("decode_image: libpng cannot start (or it is another version)");
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  void read_header() {
    guard([this] {
      png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);  // the caller limits the pixels
      png_set_read_fn(png_, this, copy_bytes_to);
      png_read_info(png_, info_);
    });
  }

  std::int64_t width() const { return png_get_image_width(png_, info_); }
  std::int64_t height() const { return png_get_image_height(png_, info_); }

  Tensor read_pixels() {
    guard([this] {
      png_set_strip_16(png_);
      png_set_expand_gray_1_2_4_to_8(png_);
      if (png_get_color_type(png_, info_) == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
      png_set_strip_alpha(png_);
      passes_ = png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
    });
    const std::int64_t channels = png_get_channels(png_, info_), row_bytes = width() * channels;
    if (static_cast<std::int64_t>(png_get_rowbytes(png_, info_)) != row_bytes)
      fail<DataError>("the PNG is of a kind that libpng cannot convert to 8 bits");
    const Tensor pixels = empty({height(), width(), channels}, {.dtype = uint8});
    read_rows(pixels.data<std::uint8_t>(), row_bytes);
    return pixels;
  }

  // Returns the stored numbers, without palette or scale.
  Tensor read_values() {
    const int type = png_get_color_type(png_, info_);
    if (type != PNG_COLOR_TYPE_GRAY && type != PNG_COLOR_TYPE_PALETTE)
      fail<DataError>("expected grey levels or a palette, found colours or transparency");
    const std::int64_t bytes = png_get_bit_depth(png_, info_) == 16 ? 2 : 1;
    guard([this] {
      png_set_packing(png_);
      passes_ = png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
    });
    const Tensor stored = empty({height(), width(), bytes}, {.dtype = uint8});
    std::uint8_t* const values = stored.data<std::uint8_t>();
    read_rows(values, width() * bytes);
    if (bytes == 1) return stored;
    const Tensor result = empty({height(), width(), 1}, {.dtype = uint8});
    for (std::int64_t i = 0; i < result.numel(); ++i) {  // the upper byte comes first
      if (values[2 * i] != 0)
        fail<DataError>("expected values from 0 to 255, got {} in row {}, column {}",
                        values[2 * i] * 256 + values[2 * i + 1], i / width(), i % width());
      result.data<std::uint8_t>()[i] = values[2 * i + 1];
    }
    return result;
  }

  // Is complete once the pixels have been read, because the EXIF data may follow them.
  int orientation() const {
    png_uint_32 size = 0;
    png_bytep exif = nullptr;
    if (!png_get_eXIf_1(png_, info_, &size, &exif)) return 1;
    return exif_orientation({exif, size});
  }

 private:
  // Runs `body`, which calls libpng and must own nothing that needs a destructor.
  template <class Body>
  void guard(Body body) {
    if (setjmp(target_) != 0)
      fail<DataError>("the PNG is corrupt or truncated: {}", static_cast<const char*>(message_));
    body();
  }

  void read_rows(std::uint8_t* to, std::int64_t row_bytes) {
    guard([this, to, row_bytes] {
      for (int pass = 0; pass < passes_; ++pass)
        for (std::int64_t y = 0; y < height(); ++y) png_read_row(png_, to + y * row_bytes, nullptr);
      png_read_end(png_, info_);
    });
  }

  [[noreturn]] static void jump_back(png_structp png, png_const_charp message) {
    auto& reader = *static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(reader.message_, sizeof(reader.message_), "%s", message);
    std::longjmp(reader.target_, 1);
  }
  static void ignore_warning(png_structp, png_const_charp) {}

  static void copy_bytes_to(png_structp png, png_bytep to, std::size_t count) {
    auto& reader = *static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > reader.rest_.size()) png_error(png, "the file ends too early");
    std::memcpy(to, reader.rest_.data(), count);
    reader.rest_ = reader.rest_.subspan(count);
  }

  std::span<const std::uint8_t> rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int passes_ = 1;
  std::jmp_buf target_;
  char message_[128] = "";
};

// Returns what a function of the reader makes of the file.
DecodedImage decode(std::span<const std::uint8_t> bytes, const DecodeOptions& options,
                    Tensor (PngReader::*read)()) {
  check_chunks(bytes);
  PngReader reader(bytes);
  reader.read_header();
  check_image_size(reader.width(), reader.height(), options);
  const Tensor pixels = (reader.*read)();
  return {pixels, reader.orientation()};
}

}  // namespace

DecodedImage decode_png_values(std::span<const std::uint8_t> bytes, const DecodeOptions& options) {
  return decode(bytes, options, &PngReader::read_values);
}

DecodedImage decode_png(std::span<const std::uint8_t> bytes, const DecodeOptions& options) {
  return decode(bytes, options, &PngReader::read_pixels);
}

}  // namespace tutti::data
