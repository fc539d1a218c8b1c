#include "random_erasing.h"

#include "checks.h"

#include <utility>

namespace tutti::data {
namespace {

void check_float_image(const Tensor& image) {
  if (image.dtype() != float32)
    fail<DTypeError>("RandomErasing: expected a float32 image, got {}; put it behind Normalize",
                     to_string(image.dtype()));
  if (image.rank() != 3 || !image.is_dense() || !image.device().is_cpu())
    fail<ShapeError>(
        "RandomErasing: expected a dense image (channels, height, width) on the CPU, got shape {}",
        to_string(image.shape()));
}

}  // namespace

Tensor erase(const Tensor& image, const Box& box, float value) {
  check_float_image(image);
  check_box(box, image.size(1), image.size(2), "erase");
  const Tensor result = image.clone();
  float* const out = result.data<float>();
  const Strides& strides = result.strides();
  for (std::int64_t c = 0; c < image.size(0); ++c)
    for (std::int64_t y = box.top; y < box.top + box.height; ++y)
      for (std::int64_t x = box.left; x < box.left + box.width; ++x)
        out[c * strides[0] + y * strides[1] + x * strides[2]] = value;
  return result;
}

RandomErasing::RandomErasing(Options options) : options_(options) {
  check_probability(options.p, "RandomErasing");
  constexpr double smallest = 1e-9;
  check_range(options.scale.first, options.scale.second, smallest, "RandomErasing", "scale");
  check_range(options.ratio.first, options.ratio.second, smallest, "RandomErasing", "ratio");
}

Box RandomErasing::draw(std::int64_t height, std::int64_t width, Generator& random) const {
  if (random.uniform() >= options_.p) return {};
  for (int attempt = 0; attempt < 10; ++attempt) {
    Box box = draw_box_size(height, width, options_.scale, options_.ratio, random);
    std::swap(box.height, box.width);  // torchvision's ratio is that of height to width here
    if (box.height >= height || box.width >= width) continue;
    box.top = random.below(height - box.height + 1);
    box.left = random.below(width - box.width + 1);
    return box;
  }
  return {};
}

Tensor RandomErasing::operator()(const Tensor& image, Generator& random) const {
  check_float_image(image);
  const Box box = draw(image.size(1), image.size(2), random);
  return box.height * box.width == 0 ? image : erase(image, box, options_.value);
}

}  // namespace tutti::data
