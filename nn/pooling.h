// Pooling layers over the two spatial dimensions of (N, C, H, W). The operations, which also take
// one and three dimensions, are in functional/pooling.h.
#pragma once

#include "functional/pooling.h"
#include "module.h"
#include "spatial_option.h"

namespace tutti::nn {

/// A layer that takes the largest element of every window (nn::max_pool).
class MaxPool2d : public Layer {
 public:
  struct Options {
    SpatialOption kernel = {};
    /// The stride is equal to the kernel unless it is given.
    SpatialOption stride = {};
    /// The padding on either side is at most half of the kernel. It is never the maximum.
    SpatialOption padding = 0;
  };
  /// ValueError for a kernel or stride below 1, or a padding that is negative or more than half of
  /// the kernel.
  explicit MaxPool2d(const Options& options);

  Tensor forward(const Tensor& input) override;
  std::string describe() const override;

 private:
  PoolOptions options_;
};

/// A layer that takes the mean of every window (nn::avg_pool).
class AvgPool2d : public Layer {
 public:
  struct Options {
    SpatialOption kernel = {};
    /// The stride is equal to the kernel unless it is given.
    SpatialOption stride = {};
    /// The number of zeros on either side is at most half of the kernel.
    SpatialOption padding = 0;
    /// Whether the padding counts in the divisor of the mean.
    bool count_include_pad = true;
  };
  /// ValueError as for MaxPool2d.
  explicit AvgPool2d(const Options& options);

  Tensor forward(const Tensor& input) override;
  std::string describe() const override;

 private:
  PoolOptions options_;
};

/// A layer that averages over windows which cover the input evenly, so that the output has the
/// given size.
class AdaptiveAvgPool2d : public Layer {
 public:
  struct Options {
    SpatialOption output = 1;
  };
  AdaptiveAvgPool2d() : AdaptiveAvgPool2d(Options{}) {}
  /// ValueError for an output size below 1.
  explicit AdaptiveAvgPool2d(const Options& options);

  Tensor forward(const Tensor& input) override;
  std::string describe() const override;

 private:
  Dims output_;
};

}  // namespace tutti::nn
