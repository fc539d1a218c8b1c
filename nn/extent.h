// Extent: a size for each spatial dimension, as options of convolution and pooling layers take it:
// one number for all of them (.kernel = 3) or a list (.kernel = {3, 5}). Which numbers are legal is
// the layer's business.
#pragma once

#include "../core/dims.h"

namespace tutti::nn {

class Extent {
 public:
  Extent() = default;  ///< not given
  Extent(std::int64_t all) : values_{all} {}
  Extent(std::initializer_list<std::int64_t> each) : values_(each) {}
  const Dims& values() const { return values_; }

 private:
  Dims values_;
};

/// "3" where all are equal, else "(3, 5)": for describe().
std::string to_short_string(const Dims& dims);

}  // namespace tutti::nn
