// Fuzzes decode_image(). An input is a JPEG or PNG file; it is decoded to colours at its full size
// and to grey at a reduced one. libjpeg and libpng themselves are not built with sanitizers.
#include "input.h"

#include <tutti/data/decode/decode_image.h>

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
      std::int64_t sum = 0;  // a sanitizer looks at every byte
      for (std::int64_t i = 0; i < image.numel(); ++i) sum += image.data<std::uint8_t>()[i];
      test::require(sum >= 0 && sum <= 255 * image.numel(), "a byte has no value");
    });
}

}  // namespace
}  // namespace tutti

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tutti::read({data, size});
  return 0;
}
