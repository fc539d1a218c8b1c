// Crops: the centre, a random place in a padded image, and a random part that is scaled. The
// classes crop a mask with its image, and give pixels from outside the class 255, which losses
// ignore.
#pragma once

#include "resize.h"
#include "transform.h"

#include <utility>

namespace tutti::data {

/// Returns the part of a uint8 image (height, width, channels) in `box`. Where the box reaches
/// outside of the image the result is `fill`. Throws a ValueError for an empty box.
Tensor crop(const Tensor& image, const Box& box, std::uint8_t fill = 0);
/// Returns the part of an image and its mask. Outside of the image, the image is black and the mask
/// is `ignore_index`.
Sample crop(Sample sample, const Box& box, std::uint8_t ignore_index = 255);
/// Returns the height x width pixels in the centre; a smaller image is padded with black.
Tensor center_crop(const Tensor& image, std::int64_t height, std::int64_t width);

/// Crops the centre to size x size pixels.
class CenterCrop {
 public:
  explicit CenterCrop(std::int64_t size);
  Sample operator()(Sample sample, Generator&) const;

 private:
  std::int64_t size_;
};

/// Pads an image with black on all sides and crops size x size pixels at a random place. An image
/// that is still smaller is padded to that size.
class RandomCrop {
 public:
  struct Options {
    std::int64_t size = 32;
    std::int64_t padding = 4;
    std::uint8_t ignore_index = 255;  ///< what a mask is outside of its image
  };
  /// Throws a ValueError for a size below 1 or a negative padding.
  explicit RandomCrop(Options options);

  /// Draws the place, which counts from the unpadded image's corner.
  Box draw(std::int64_t height, std::int64_t width, Generator& random) const;
  Sample operator()(Sample sample, Generator& random) const;

 private:
  Options options_;
};

/// Scales a random part of an image to size x size pixels, as torchvision's class of this name.
class RandomResizedCrop {
 public:
  struct Options {
    std::int64_t size = 224;
    std::pair<double, double> scale = {0.08, 1};           ///< the part of the area
    std::pair<double, double> ratio = {3.0 / 4, 4.0 / 3};  ///< of width to height
  };
  /// Throws a ValueError for a size below 1, and for ranges that are empty or not positive.
  explicit RandomResizedCrop(Options options);

  /// Draws the part: its share of the area is uniform, and its ratio log-uniform. If ten draws do
  /// not fit into the image, it is the largest centre of a ratio that is allowed.
  Box draw(std::int64_t height, std::int64_t width, Generator& random) const;
  Sample operator()(Sample sample, Generator& random) const;

 private:
  Options options_;
};

}  // namespace tutti::data
