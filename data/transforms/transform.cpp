// What all transforms share: their application with numbers that follow from a RandomKey, and the
// checks of their arguments.
#include "transform.h"

#include "../../core/philox.h"
#include "checks.h"

#include <cmath>

namespace tutti::data {

Generator RandomKey::generator(std::uint64_t step) const {
  // Each part is encrypted with the key that the parts before it make.
  std::uint64_t key = seed;
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(sample), step}) {
    const PhiloxBlock block = philox(key, part);
    key = std::uint64_t{block.words[0]} << 32 | block.words[1];
  }
  return Generator(key);
}

namespace {

void check_mask(const Sample& sample) {
  if (!sample.mask.defined()) return;
  const Tensor &image = sample.image, &mask = sample.mask;
  const int rows = image.dtype() == uint8 ? 0 : 1;  // a normalised image has its channels first
  if (image.rank() == 3 && mask.rank() == 3 && mask.dtype() == uint8 && mask.is_contiguous() &&
      mask.size(2) == 1 && mask.size(0) == image.size(rows) && mask.size(1) == image.size(rows + 1))
    return;
  fail<ShapeError>(
      "expected a contiguous uint8 mask (height, width, 1) of the size of its image {}, got {} {}; "
      "a transform that moves pixels has to take the Sample",
      to_string(image.shape()), to_string(mask.dtype()), to_string(mask.shape()));
}

}  // namespace

Sample apply_transforms(const std::vector<Transform>& transforms, Sample sample,
                        const RandomKey& key) {
  check_mask(sample);
  for (std::size_t step = 0; step < transforms.size(); ++step) {
    Generator random = key.generator(step);
    sample = transforms[step](std::move(sample), random);
    check_mask(sample);
  }
  return sample;
}

void check_image(const Tensor& image, const char* op) {
  if (image.dtype() != uint8)
    fail<DTypeError>("{}: expected a uint8 image, got {}; put it before Normalize", op,
                     to_string(image.dtype()));
  if (!image.device().is_cpu())
    fail<DeviceError>("{}: expected an image on the CPU, got one on {}", op,
                      to_string(image.device()));
  if (image.rank() != 3 || image.numel() == 0 || image.size(2) > 4)
    fail<ShapeError>(
        "{}: expected an image (height, width, channels) with 1 to 4 channels, got shape {}", op,
        to_string(image.shape()));
  if (!image.is_contiguous())
    fail<ShapeError>(
        "{}: expected a contiguous image, got a view with strides {}; call contiguous()", op,
        to_string(image.strides()));
}

void check_range(double low, double high, double least, const char* op, const char* what) {
  if (!(low >= least && high >= low && std::isfinite(high)))
    fail<ValueError>("{}: expected a {} from low to high, at least {}, got {} to {}", op, what,
                     least, low, high);
}

void check_probability(double p, const char* op) {
  if (!(p >= 0 && p <= 1)) fail<ValueError>("{}: expected a probability in [0, 1], got {}", op, p);
}

void check_box(const Box& box, std::int64_t height, std::int64_t width, const char* op) {
  const auto fits = [](std::int64_t begin, std::int64_t length, std::int64_t whole) {
    return begin >= 0 && length >= 0 && begin <= whole && length <= whole - begin;
  };
  if (!fits(box.top, box.height, height) || !fits(box.left, box.width, width))
    fail<ValueError>(
        "{}: a box of {} x {} pixels at ({}, {}) does not lie in an image of {} x {} pixels", op,
        box.height, box.width, box.top, box.left, height, width);
}

}  // namespace tutti::data
