// resize() scales images with an antialiasing bilinear filter. The result is that of Image.resize
// of Pillow up to version 12, to the bit: the same weights in the same fixed-point numbers,
// horizontally first. Pillow 13 begins vertically where that is less work. resize_mask() takes the
// nearest pixel.
#pragma once

#include "transform.h"

namespace tutti::data {

/// Scales `box` of a uint8 image (height, width, channels) to height x width, bilinearly. Where the
/// image shrinks, the filter grows with the scale, so that every pixel counts. Throws a ValueError
/// for a size below 1 or a box that is empty or reaches outside of the image.
Tensor resize(const Tensor& image, std::int64_t height, std::int64_t width, const Box& box);
/// Scales the whole image.
Tensor resize(const Tensor& image, std::int64_t height, std::int64_t width);
/// Scales an image so that its shorter side has `size` pixels and its shape is kept. The longer
/// side is rounded down. Throws a ValueError for a size below 1, and a DataError for an image so
/// narrow that the result would have more than 178,956,970 pixels.
Tensor resize_shorter_side(const Tensor& image, std::int64_t size);

/// Scales `box` of a mask, uint8 (height, width, 1), to height x width. Each pixel is that in which
/// the centre of the new pixel lies, as Pillow's NEAREST and PyTorch's "nearest-exact" take it.
/// Throws as resize() does.
Tensor resize_mask(const Tensor& mask, std::int64_t height, std::int64_t width, const Box& box);
/// Scales the whole mask.
Tensor resize_mask(const Tensor& mask, std::int64_t height, std::int64_t width);

/// Scales images so that the shorter side has `size` pixels; torchvision's Resize(size).
class Resize {
 public:
  explicit Resize(std::int64_t size);
  Sample operator()(Sample sample, Generator&) const;

 private:
  std::int64_t size_;
};

/// Scales images, with their masks, by a uniform factor.
class RandomScale {
 public:
  /// Throws a ValueError unless 0 < low <= high.
  explicit RandomScale(double low = 0.5, double high = 2);
  Sample operator()(Sample sample, Generator& random) const;

 private:
  double low_, high_;
};

}  // namespace tutti::data
