#include "masked.h"

#include "../../core/create.h"
#include "checks.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tutti::data {
namespace {

void check_masked(const Tensor& masked, const char* op) {
  check_image(masked, op);
  if (masked.size(2) < 2)
    fail<ShapeError>("{}: expected an image with a mask as its last channel, got shape {}", op,
                     to_string(masked.shape()));
}

// Returns the pixel of `image` at a position, bilinearly; what is outside counts as black.
void sample_bilinear(const Tensor& image, double row, double column, std::uint8_t* to) {
  const std::int64_t width = image.size(1), channels = image.size(2);
  const double top = std::floor(row), left = std::floor(column);
  double sums[4] = {};
  for (const int corner : {0, 1, 2, 3}) {
    const std::int64_t r = std::llrint(top) + corner / 2, c = std::llrint(left) + corner % 2;
    if (r < 0 || r >= image.size(0) || c < 0 || c >= width) continue;
    const double weight = (1 - std::abs(row - static_cast<double>(r))) *
                          (1 - std::abs(column - static_cast<double>(c)));
    for (std::int64_t i = 0; i < channels; ++i)
      sums[i] += weight * image.data<std::uint8_t>()[(r * width + c) * channels + i];
  }
  for (std::int64_t i = 0; i < channels; ++i)
    to[i] = static_cast<std::uint8_t>(std::lrint(std::clamp(sums[i], 0.0, 255.0)));
}

}  // namespace

Tensor join_mask(const Tensor& image, const Tensor& mask) {
  const bool is_normalised = image.dtype() != uint8;
  const int channel = is_normalised ? 0 : 2, row = is_normalised ? 1 : 0;
  if (image.rank() != 3 || mask.rank() != 3 || mask.size(2) != 1 ||
      image.size(row) != mask.size(0) || image.size(row + 1) != mask.size(1))
    fail<ShapeError>("join_mask: expected an image of the size of the mask {}, got shape {}",
                     to_string(mask.shape()), to_string(image.shape()));
  Shape shape = image.shape();
  const std::int64_t channels = shape[channel]++;
  // A channels_last image has its channels inside.
  const bool inside = is_normalised && channels > 1 && image.strides()[0] == 1;
  shape.insert(0, 1);
  const Tensor result = empty(shape, {.dtype = image.dtype()},
                              inside ? MemoryFormat::channels_last : MemoryFormat::contiguous)
                            .select(0, 0);
  result.slice(channel, 0, channels).copy_(image);
  result.select(channel, channels).copy_(mask.select(2, 0));
  return result;
}

std::pair<Tensor, Tensor> split_mask(const Tensor& masked) {
  check_masked(masked, "split_mask");
  const std::int64_t channels = masked.size(2) - 1;
  return {masked.slice(2, 0, channels).contiguous(),
          masked.slice(2, channels, channels + 1).contiguous()};
}

std::pair<Tensor, Tensor> split_masks(const Tensor& batch) {
  if (batch.rank() != 4 || batch.size(1) < 2)
    fail<ShapeError>("split_masks: expected a batch (n, channels + 1, height, width), got shape {}",
                     to_string(batch.shape()));
  const std::int64_t channels = batch.size(1) - 1;
  return {batch.slice(1, 0, channels).contiguous(batch.memory_format()),
          batch.select(1, channels).to(int64).contiguous()};
}

Tensor resize_masked(const Tensor& masked, std::int64_t height, std::int64_t width) {
  const auto [image, mask] = split_mask(masked);
  const Tensor scaled = resize(image, height, width);
  const Tensor result = empty({height, width, 1}, {.dtype = uint8});
  const std::int64_t rows = mask.size(0), columns = mask.size(1);
  std::uint8_t* to = result.data<std::uint8_t>();
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x)
      *to++ = mask.data<std::uint8_t>()[(2 * y + 1) * rows / (2 * height) * columns +
                                        (2 * x + 1) * columns / (2 * width)];
  return join_mask(scaled, result);
}

Tensor crop_masked(const Tensor& masked, const Box& box, std::uint8_t ignore) {
  const auto [image, mask] = split_mask(masked);
  return join_mask(crop(image, box), crop(mask, box, ignore));
}

Tensor rotate_masked(const Tensor& masked, double degrees, std::uint8_t ignore) {
  const auto [image, mask] = split_mask(masked);
  const Tensor turned = empty_like(image), truth = empty_like(mask);
  const std::int64_t height = mask.size(0), width = mask.size(1), channels = image.size(2);
  const double angle = degrees * std::numbers::pi / 180, cosine = std::cos(angle),
               sine = std::sin(angle), middle_y = static_cast<double>(height - 1) / 2,
               middle_x = static_cast<double>(width - 1) / 2;
  for (std::int64_t i = 0; i < height * width; ++i) {
    const double down = static_cast<double>(i / width) - middle_y,
                 right = static_cast<double>(i % width) - middle_x,
                 row = middle_y + cosine * down + sine * right,
                 column = middle_x + cosine * right - sine * down;
    sample_bilinear(image, row, column, turned.data<std::uint8_t>() + i * channels);
    const std::int64_t r = std::llrint(row), c = std::llrint(column);
    const bool inside = r >= 0 && r < height && c >= 0 && c < width;
    truth.data<std::uint8_t>()[i] = inside ? mask.data<std::uint8_t>()[r * width + c] : ignore;
  }
  return join_mask(turned, truth);
}

Tensor OnImage::operator()(const Tensor& masked, Generator& random) const {
  const auto [image, mask] = split_mask(masked);
  return join_mask(transform_(image, random), mask);
}

RandomMaskedScale::RandomMaskedScale(double low, double high) : low_(low), high_(high) {
  check_range(low, high, 1e-3, "RandomMaskedScale", "factor");
}

Tensor RandomMaskedScale::operator()(const Tensor& masked, Generator& random) const {
  check_masked(masked, "RandomMaskedScale");
  const double factor = random.uniform(low_, high_);
  const auto scaled = [&](std::int64_t size) {
    return std::max<std::int64_t>(1, std::llrint(static_cast<double>(size) * factor));
  };
  return resize_masked(masked, scaled(masked.size(0)), scaled(masked.size(1)));
}

Tensor RandomMaskedCrop::operator()(const Tensor& masked, Generator& random) const {
  check_masked(masked, "RandomMaskedCrop");
  return crop_masked(masked, place_.draw(masked.size(0), masked.size(1), random), ignore_);
}

RandomMaskedRotation::RandomMaskedRotation(double degrees, std::uint8_t ignore)
    : degrees_(degrees), ignore_(ignore) {
  if (!(degrees >= 0 && degrees <= 180))
    fail<ValueError>("RandomMaskedRotation: expected degrees from 0 to 180, got {}", degrees);
}

}  // namespace tutti::data
