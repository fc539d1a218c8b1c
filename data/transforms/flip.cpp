#include "flip.h"

#include "../../core/create.h"
#include "checks.h"

#include <algorithm>

namespace tutti::data {

Tensor horizontal_flip(const Tensor& image) {
  check_image(image, "horizontal_flip");
  const std::int64_t height = image.size(0), width = image.size(1), channels = image.size(2);
  const Tensor result = empty(image.shape(), {.dtype = uint8});
  const std::uint8_t* in = image.data<std::uint8_t>();
  for (std::int64_t y = 0; y < height; ++y) {
    std::uint8_t* out = result.data<std::uint8_t>() + (y + 1) * width * channels;
    for (std::int64_t x = 0; x < width; ++x, in += channels)
      std::copy_n(in, channels, out -= channels);
  }
  return result;
}

RandomHorizontalFlip::RandomHorizontalFlip(double p) : p_(p) {
  check_probability(p, "RandomHorizontalFlip");
}

}  // namespace tutti::data
