// resize() scales images with an antialiasing filter. The result is that of Image.resize of Pillow
// up to version 12, to the bit: the same weights in the same fixed-point numbers, horizontally
// first. Pillow 13 begins vertically where that is less work.
#pragma once

#include "transform.h"

namespace tutti::data {

/// The interpolation between pixels. Where an image shrinks, the filter grows with the scale, so
/// that every pixel counts.
enum class Filter { bilinear, bicubic };

/// Scales `box` of a uint8 image (height, width, channels) to height x width. Throws a ValueError
/// for a size below 1 or a box that is empty or reaches outside of the image.
Tensor resize(const Tensor& image, std::int64_t height, std::int64_t width, Filter filter,
              const Box& box);
/// Scales the whole image.
Tensor resize(const Tensor& image, std::int64_t height, std::int64_t width,
              Filter filter = Filter::bilinear);
/// Scales an image so that its shorter side has `size` pixels and its shape is kept. The longer
/// side is rounded down. Throws a ValueError for a size below 1, and a DataError for an image so
/// narrow that the result would have more than 178,956,970 pixels.
Tensor resize_shorter_side(const Tensor& image, std::int64_t size,
                           Filter filter = Filter::bilinear);

/// Scales images so that the shorter side has `size` pixels; torchvision's Resize(size).
class Resize {
 public:
  explicit Resize(std::int64_t size, Filter filter = Filter::bilinear);
  Tensor operator()(const Tensor& image, Generator&) const {
    return resize_shorter_side(image, size_, filter_);
  }

 private:
  std::int64_t size_;
  Filter filter_;
};

}  // namespace tutti::data
