// SpatialOption: an option of a convolution or pooling layer that has one number for each spatial
// dimension, such as kernel or stride. The layer decides which numbers are legal.
#pragma once

#include "../core/dims.h"

namespace tutti::nn {

/// Either one number for all spatial dimensions (.kernel = 3) or a list with one number for each
/// (.kernel = {3, 5}).
class SpatialOption {
 public:
  /// An option that was not given: values() is empty.
  SpatialOption() = default;
  SpatialOption(std::int64_t all) : values_{all} {}
  SpatialOption(std::initializer_list<std::int64_t> each) : values_(each) {}
  const Dims& values() const { return values_; }

 private:
  Dims values_;
};

}  // namespace tutti::nn
