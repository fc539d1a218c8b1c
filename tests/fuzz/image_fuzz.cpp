// Fuzzes decode_image(). An input is a JPEG or PNG file; it is decoded to colours at its full size
// and to grey at a reduced one. libjpeg and libpng themselves are not built with sanitizers.
#include "input.h"

#include <tutti/data/decode/decode_image.h>

#include <cstring>

namespace tutti {
namespace {

using namespace data;

void read(std::span<const std::uint8_t> bytes) {
  constexpr std::int64_t max_pixels = 1 << 18;  // keeps an input below a second
  for (const DecodeOptions& options :
       {DecodeOptions{.max_pixels = max_pixels},
        DecodeOptions{.channels = 1, .min_size = 4, .max_pixels = max_pixels}})
    test::is_read<DataError>("", [&] {
      const Tensor image = decode_image(bytes, options);
      test::require(image.rank() == 3 && image.size(2) == options.channels && image.numel() > 0 &&
                        image.numel() <= max_pixels * options.channels && image.dtype() == uint8 &&
                        image.is_contiguous(),
                    "the image has another shape than its options say");
      const Tensor again = decode_image(bytes, options);  // while `image` keeps its memory
      test::require(
          again.numel() == image.numel() &&
              std::memcmp(again.raw(), image.raw(), static_cast<std::size_t>(image.numel())) == 0,
          "two calls give different pixels, as where a byte is not written");
    });
}

}  // namespace
}  // namespace tutti

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tutti::read({data, size});
  return 0;
}
