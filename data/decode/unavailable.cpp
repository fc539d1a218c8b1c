// The decoders of a build without libjpeg and libpng: they throw an error that says how to get
// them.
#include "formats.h"

namespace tutti::data {

DecodedImage decode_jpeg(std::span<const std::uint8_t>, const DecodeOptions&) {
  fail<Error>(
      "decode_image: this tutti was built without libjpeg and libpng. Install them (on Debian: "
      "apt-get install libjpeg-dev libpng-dev) and build with -DTUTTI_IMAGES=ON");
}

DecodedImage decode_png(std::span<const std::uint8_t> bytes, const DecodeOptions& options) {
  return decode_jpeg(bytes, options);
}

DecodedImage decode_png_values(std::span<const std::uint8_t> bytes, const DecodeOptions& options) {
  return decode_jpeg(bytes, options);
}

}  // namespace tutti::data
