#include "crop.h"

#include "../../core/create.h"
#include "checks.h"

#include <algorithm>
#include <cmath>

namespace tutti::data {
namespace {

void check_size(std::int64_t size, const char* op) {
  if (size < 1) fail<ValueError>("{}: expected a size of at least 1, got {}", op, size);
}

// Returns where a crop of `size` pixels begins, so that it lies in the centre of `length` pixels.
// Halves are rounded as torchvision rounds them: outside the image by its padding, inside to even.
std::int64_t center_offset(std::int64_t length, std::int64_t size) {
  if (size > length) return -((size - length) / 2);
  return std::lrint(static_cast<double>(length - size) / 2);
}

Box center_box(const Tensor& image, std::int64_t height, std::int64_t width) {
  return {.top = center_offset(image.size(0), height),
          .left = center_offset(image.size(1), width),
          .height = height,
          .width = width};
}

}  // namespace

Tensor crop(const Tensor& image, const Box& box, std::uint8_t fill) {
  check_image(image, "crop");
  if (box.height < 1 || box.width < 1)
    fail<ValueError>("crop: expected a box of at least 1 x 1 pixels, got {} x {}", box.height,
                     box.width);
  const std::int64_t height = image.size(0), width = image.size(1), channels = image.size(2);
  const Tensor result = empty({box.height, box.width, channels}, {.dtype = uint8});
  std::uint8_t* const out = result.data<std::uint8_t>();
  // The part of each row that the image has.
  const std::int64_t begin = std::clamp<std::int64_t>(-box.left, 0, box.width),
                     end = std::clamp(width - box.left, begin, box.width);
  for (std::int64_t y = 0; y < box.height; ++y) {
    std::uint8_t* const row = out + y * box.width * channels;
    const std::int64_t from = box.top + y;
    if (from < 0 || from >= height || begin == end) {
      std::fill_n(row, box.width * channels, fill);
      continue;
    }
    std::fill_n(row, begin * channels, fill);
    std::copy_n(image.data<std::uint8_t>() + (from * width + box.left + begin) * channels,
                (end - begin) * channels, row + begin * channels);
    std::fill_n(row + end * channels, (box.width - end) * channels, fill);
  }
  return result;
}

Sample crop(Sample sample, const Box& box, std::uint8_t ignore_index) {
  sample.image = crop(sample.image, box);
  if (sample.mask.defined()) sample.mask = crop(sample.mask, box, ignore_index);
  return sample;
}

Tensor center_crop(const Tensor& image, std::int64_t height, std::int64_t width) {
  check_image(image, "center_crop");
  return crop(image, center_box(image, height, width));
}

CenterCrop::CenterCrop(std::int64_t size) : size_(size) { check_size(size, "CenterCrop"); }

Sample CenterCrop::operator()(Sample sample, Generator&) const {
  check_image(sample.image, "CenterCrop");
  return crop(sample, center_box(sample.image, size_, size_));
}

RandomCrop::RandomCrop(Options options) : options_(options) {
  check_size(options.size, "RandomCrop");
  if (options.padding < 0)
    fail<ValueError>("RandomCrop: expected a padding of at least 0, got {}", options.padding);
}

Box RandomCrop::draw(std::int64_t height, std::int64_t width, Generator& random) const {
  const auto place = [&](std::int64_t length) {
    const std::int64_t room = length + 2 * options_.padding - options_.size;
    return room < 0 ? center_offset(length, options_.size)
                    : random.below(room + 1) - options_.padding;
  };
  const std::int64_t top = place(height);
  return {.top = top, .left = place(width), .height = options_.size, .width = options_.size};
}

Sample RandomCrop::operator()(Sample sample, Generator& random) const {
  check_image(sample.image, "RandomCrop");
  const Box box = draw(sample.image.size(0), sample.image.size(1), random);
  return crop(std::move(sample), box, options_.ignore_index);
}

RandomResizedCrop::RandomResizedCrop(Options options) : options_(options) {
  check_size(options.size, "RandomResizedCrop");
  constexpr double smallest = 1e-9;
  check_range(options.scale.first, options.scale.second, smallest, "RandomResizedCrop", "scale");
  check_range(options.ratio.first, options.ratio.second, smallest, "RandomResizedCrop", "ratio");
}

Box RandomResizedCrop::draw(std::int64_t height, std::int64_t width, Generator& random) const {
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = static_cast<double>(height) * static_cast<double>(width) *
                        random.uniform(options_.scale.first, options_.scale.second);
    const double aspect =
        std::exp(random.uniform(std::log(options_.ratio.first), std::log(options_.ratio.second)));
    Box box{.height = std::lrint(std::sqrt(area / aspect)),
            .width = std::lrint(std::sqrt(area * aspect))};
    if (box.height < 1 || box.height > height || box.width < 1 || box.width > width) continue;
    box.top = random.below(height - box.height + 1);
    box.left = random.below(width - box.width + 1);
    return box;
  }
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  Box box{.height = height, .width = width};
  if (ratio < options_.ratio.first)
    box.height = std::lrint(static_cast<double>(width) / options_.ratio.first);
  else if (ratio > options_.ratio.second)
    box.width = std::lrint(static_cast<double>(height) * options_.ratio.second);
  box.height = std::clamp<std::int64_t>(box.height, 1, height);
  box.width = std::clamp<std::int64_t>(box.width, 1, width);
  box.top = (height - box.height) / 2;
  box.left = (width - box.width) / 2;
  return box;
}

Sample RandomResizedCrop::operator()(Sample sample, Generator& random) const {
  check_image(sample.image, "RandomResizedCrop");
  const std::int64_t size = options_.size;
  const Box box = draw(sample.image.size(0), sample.image.size(1), random);
  sample.image = resize(sample.image, size, size, box);
  if (sample.mask.defined()) sample.mask = resize_mask(sample.mask, size, size, box);
  return sample;
}

}  // namespace tutti::data
