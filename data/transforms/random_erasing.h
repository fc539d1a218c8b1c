// Overwrites a random rectangle of an image (Zhong et al., "Random Erasing Data Augmentation", AAAI
// 2020).
#pragma once

#include "transform.h"

#include <utility>

namespace tutti::data {

/// Returns a float32 image (channels, height, width) in which the pixels of `box` are `value`. The
/// result has the strides of the image. Throws a ValueError for a box outside of the image.
Tensor erase(const Tensor& image, const Box& box, float value);

/// Erases a random rectangle with probability `p`, as torchvision's class of this name. It stands
/// behind Normalize, where 0 is the mean of the data.
class RandomErasing {
 public:
  struct Options {
    double p = 0.5;
    std::pair<double, double> scale = {0.02, 0.33};  ///< the part of the area
    std::pair<double, double> ratio = {0.3, 3.3};    ///< of height to width
    float value = 0;
  };
  /// Throws a ValueError for a `p` outside [0, 1], and for ranges that are empty or not positive.
  explicit RandomErasing(Options options);

  /// Draws the rectangle; empty if nothing is erased.
  Box draw(std::int64_t height, std::int64_t width, Generator& random) const;
  Tensor operator()(const Tensor& image, Generator& random) const;

 private:
  Options options_;
};

}  // namespace tutti::data
