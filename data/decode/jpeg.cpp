// decode_jpeg(): the calls of libjpeg-turbo. libjpeg reports errors by a function that must not
// return, so it jumps back to JpegReader::guard(), which throws. No frame between the two has
// destructors to run.
#include "../../core/create.h"
#include "formats.h"

#include <csetjmp>
#include <cstdio>
#include <cstring>
// The headers of libjpeg need those of the standard library before them.
#include <jpeglib.h>

#include <jerror.h>

namespace tutti::data {
namespace {

struct ErrorManager {
  jpeg_error_mgr base;  // stays first: libjpeg holds a pointer to it
  std::jmp_buf target;
  char message[JMSG_LENGTH_MAX];
};

ErrorManager& errors_of(j_common_ptr info) { return *reinterpret_cast<ErrorManager*>(info->err); }

[[noreturn]] void jump_back(j_common_ptr info) {
  errors_of(info).base.format_message(info, errors_of(info).message);
  std::longjmp(errors_of(info).target, 1);
}

// Of the warnings only the end of the data is an error. Others, for example surplus bytes between
// markers, are frequent in files that every program opens.
void handle_message(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) jump_back(info);
}

// A progressive file may repeat scans that take little space and long to decode. Encoders make
// about ten scans.
void limit_scans(j_common_ptr info) {
  constexpr int most_scans = 200;
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= most_scans) return;
  std::snprintf(errors_of(info).message, JMSG_LENGTH_MAX, "it has more than %d scans", most_scans);
  std::longjmp(errors_of(info).target, 1);
}

// Writes a row of inverted CMYK as RGB, with PIL's rounding of products.
void write_rgb(const std::uint8_t* cmyk, std::int64_t width, std::uint8_t* rgb) {
  for (std::int64_t x = 0; x < width; ++x)
    for (int c = 0; c < 3; ++c) {
      const int product = cmyk[4 * x + c] * cmyk[4 * x + 3] + 128;
      rgb[3 * x + c] = static_cast<std::uint8_t>(((product >> 8) + product) >> 8);
    }
}

class JpegReader {
 public:
  explicit JpegReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = jump_back;
    errors_.base.emit_message = handle_message;
    progress_.progress_monitor = limit_scans;
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  void read_header() {
    guard([this] {
      jpeg_create_decompress(&info_);
      info_.progress = &progress_;
      jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xFFFF);
      jpeg_mem_src(&info_, bytes_.data(), static_cast<unsigned long>(bytes_.size()));
      jpeg_read_header(&info_, TRUE);
    });
  }

  std::int64_t width() const { return info_.image_width; }
  std::int64_t height() const { return info_.image_height; }

  int orientation() const {
    constexpr char signature[] = "Exif\0";  // six bytes with the one that ends the literal
    for (auto marker = info_.marker_list; marker; marker = marker->next)
      if (marker->marker == JPEG_APP0 + 1 && marker->data_length > sizeof(signature) &&
          std::memcmp(marker->data, signature, sizeof(signature)) == 0)
        return exif_orientation(
            {marker->data + sizeof(signature), marker->data_length - sizeof(signature)});
    return 1;
  }

  Tensor read_pixels(std::int64_t min_size) {
    if (info_.num_components == 2 || info_.num_components > 4)
      fail<DataError>(
          "the JPEG has {} colour components; expected 1 (grey), 3 (colours) or 4 "
          "(CMYK)",
          info_.num_components);
    info_.scale_denom = scale_denominator(min_size);
    const bool is_grey = info_.num_components == 1, is_cmyk = info_.num_components == 4;
    info_.out_color_space = is_grey ? JCS_GRAYSCALE : is_cmyk ? JCS_CMYK : JCS_RGB;
    guard([this] { jpeg_start_decompress(&info_); });
    const std::int64_t out_width = info_.output_width, channels = is_grey ? 1 : 3;
    const Tensor pixels = empty({info_.output_height, out_width, channels}, {.dtype = uint8});
    const Tensor cmyk = empty({is_cmyk ? out_width * 4 : 0}, {.dtype = uint8});
    read_rows(pixels.data<std::uint8_t>(), out_width * channels, cmyk.data<std::uint8_t>());
    return pixels;
  }

 private:
  // Runs `body`, which calls libjpeg and must own nothing that needs a destructor.
  template <class Body>
  void guard(Body body) {
    if (setjmp(errors_.target) != 0) fail_decoding();
    body();
  }

  [[noreturn]] void fail_decoding() const {
    const char* const message = errors_.message;
    if (errors_.base.msg_code == JERR_OUT_OF_MEMORY) fail<OutOfMemoryError>("libjpeg: {}", message);
    fail<DataError>("the JPEG is corrupt or truncated: {}", message);
  }

  unsigned scale_denominator(std::int64_t min_size) const {
    if (min_size <= 0) return 1;
    for (const unsigned denominator : {8u, 4u, 2u}) {  // libjpeg rounds sizes up
      const auto scaled = [&](std::int64_t side) { return (side + denominator - 1) / denominator; };
      if (scaled(width()) >= min_size && scaled(height()) >= min_size) return denominator;
    }
    return 1;
  }

  // `cmyk` has room for one row, and is null unless rows have to be converted.
  void read_rows(std::uint8_t* to, std::int64_t row_bytes, std::uint8_t* cmyk) {
    guard([this, to, row_bytes, cmyk] {
      while (info_.output_scanline < info_.output_height) {
        std::uint8_t* const target = to + row_bytes * info_.output_scanline;
        JSAMPROW row = cmyk ? cmyk : target;
        jpeg_read_scanlines(&info_, &row, 1);
        if (cmyk) write_rgb(cmyk, info_.output_width, target);
      }
    });
  }

  std::span<const std::uint8_t> bytes_;
  jpeg_decompress_struct info_{};
  jpeg_progress_mgr progress_{};
  ErrorManager errors_{};
};

}  // namespace

DecodedImage decode_jpeg(std::span<const std::uint8_t> bytes, const DecodeOptions& options) {
  JpegReader reader(bytes);
  reader.read_header();
  check_image_size(reader.width(), reader.height(), options);
  const int orientation = reader.orientation();
  return {reader.read_pixels(options.min_size), orientation};
}

}  // namespace tutti::data
