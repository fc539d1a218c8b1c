#include "flip.h"

#include "../../core/create.h"
#include "checks.h"

namespace tutti::data {
namespace {

// The number of channels is known to the compiler, since copies of a few bytes by memmove would
// cost several times as much.
template <int channels>
void mirror(const Tensor& image, std::uint8_t* out) {
  const std::uint8_t* in = image.data<std::uint8_t>();
  const std::int64_t height = image.size(0), width = image.size(1);
  for (std::int64_t y = 0; y < height; ++y, in += width * channels, out += width * channels)
    for (std::int64_t x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c) out[(width - 1 - x) * channels + c] = in[x * channels + c];
}

}  // namespace

Tensor horizontal_flip(const Tensor& image) {
  check_image(image, "horizontal_flip");
  const Tensor result = empty(image.shape(), {.dtype = uint8});
  std::uint8_t* const out = result.data<std::uint8_t>();
  switch (image.size(2)) {
    case 1: mirror<1>(image, out); break;
    case 2: mirror<2>(image, out); break;
    case 3: mirror<3>(image, out); break;
    default: mirror<4>(image, out);
  }
  return result;
}

RandomHorizontalFlip::RandomHorizontalFlip(double p) : p_(p) {
  check_probability(p, "RandomHorizontalFlip");
}

Sample RandomHorizontalFlip::operator()(Sample sample, Generator& random) const {
  if (random.uniform() >= p_) return sample;
  sample.image = horizontal_flip(sample.image);
  if (sample.mask.defined()) sample.mask = horizontal_flip(sample.mask);
  return sample;
}

}  // namespace tutti::data
