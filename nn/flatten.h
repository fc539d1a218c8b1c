// Flatten: a layer that joins dimensions into one; by default all dimensions but the batch.
#pragma once

#include "module.h"

namespace tutti::nn {

/// The options of Flatten.
struct FlattenOptions {
  /// The first and the last of the joined dimensions. Negative numbers count from the end.
  std::int64_t first = 1, last = -1;
};

/// A layer that joins the dimensions from `first` to `last` into one.
class Flatten : public LayerWith<FlattenOptions> {
 public:
  explicit Flatten(const Options& options = {}) : LayerWith(options) {}

  Tensor forward(const Tensor& input) override;
  std::string describe() const override;
};

}  // namespace tutti::nn
