// Transforms of images with masks. A masked image is uint8 (height, width, channels + 1): its last
// channel is the class of each pixel, as SegmentationFolder reads it. Each transform here draws
// once and changes both, images bilinearly and masks by the nearest pixel. RandomHorizontalFlip
// takes masked images as they are.
#pragma once

#include "crop.h"
#include "transform.h"

#include <utility>

namespace tutti::data {

/// Returns a masked image of a uint8 image (height, width, channels) and a mask (height, width, 1).
/// With a float32 image (channels, height, width), such as Normalize makes, it is float32 (channels
/// + 1, height, width) in the layout of the image. Throws a ShapeError for other sizes.
Tensor join_mask(const Tensor& image, const Tensor& mask);
/// Returns the image of a masked uint8 image, and its mask (height, width, 1).
std::pair<Tensor, Tensor> split_mask(const Tensor& masked);
/// Returns the images (n, channels, height, width) of a batch, in its layout, and the masks (n,
/// height, width) as int64. `batch` is float32 (n, channels + 1, height, width).
std::pair<Tensor, Tensor> split_masks(const Tensor& batch);

/// Scales a masked image to height x width.
Tensor resize_masked(const Tensor& masked, std::int64_t height, std::int64_t width);
/// Returns the part of a masked image in `box`. Outside of it, the image is black and the mask is
/// `ignore`.
Tensor crop_masked(const Tensor& masked, const Box& box, std::uint8_t ignore = 255);
/// Turns a masked image around its centre, counter-clockwise. Where pixels from outside come in,
/// the image is black and the mask is `ignore`.
Tensor rotate_masked(const Tensor& masked, double degrees, std::uint8_t ignore = 255);

/// Applies another transform, such as ColorJitter or Normalize, to the image alone. It must keep
/// the sizes.
class OnImage {
 public:
  explicit OnImage(Transform transform) : transform_(std::move(transform)) {}
  Tensor operator()(const Tensor& masked, Generator& random) const;

 private:
  Transform transform_;
};

/// Scales a masked image by a uniform factor.
class RandomMaskedScale {
 public:
  /// Throws a ValueError unless 0 < low <= high.
  explicit RandomMaskedScale(double low = 0.5, double high = 2);
  Tensor operator()(const Tensor& masked, Generator& random) const;

 private:
  double low_, high_;
};

/// Crops size x size pixels of a masked image at a random place. A smaller image is padded around
/// its centre.
class RandomMaskedCrop {
 public:
  /// Throws a ValueError for a size below 1.
  explicit RandomMaskedCrop(std::int64_t size, std::uint8_t ignore = 255)
      : place_({.size = size, .padding = 0}), ignore_(ignore) {}
  Tensor operator()(const Tensor& masked, Generator& random) const;

 private:
  RandomCrop place_;
  std::uint8_t ignore_;
};

/// Turns a masked image by a uniform angle within [-degrees, degrees].
class RandomMaskedRotation {
 public:
  /// Throws a ValueError for a negative angle or one above 180.
  explicit RandomMaskedRotation(double degrees = 10, std::uint8_t ignore = 255);
  Tensor operator()(const Tensor& masked, Generator& random) const {
    return rotate_masked(masked, random.uniform(-degrees_, degrees_), ignore_);
  }

 private:
  double degrees_;
  std::uint8_t ignore_;
};

}  // namespace tutti::data
