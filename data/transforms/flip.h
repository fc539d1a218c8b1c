// Mirrors images, with their masks.
#pragma once

#include "transform.h"

namespace tutti::data {

/// Returns a uint8 image (height, width, channels) with left and right exchanged.
Tensor horizontal_flip(const Tensor& image);

/// Exchanges left and right with probability `p`.
class RandomHorizontalFlip {
 public:
  /// Throws a ValueError for a `p` outside [0, 1].
  explicit RandomHorizontalFlip(double p = 0.5);
  Sample operator()(Sample sample, Generator& random) const;

 private:
  double p_;
};

}  // namespace tutti::data
