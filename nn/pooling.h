// Pooling layers: the maximum over one to three spatial dimensions, and averages over the two of
// (N, C, H, W). The operations, which take one to three dimensions, are in functional/pooling.h.
#pragma once

#include "functional/pooling.h"
#include "module.h"

namespace tutti::nn {

/// A layer that takes the largest element of every window (nn::max_pool).
class MaxPool : public Layer {
 public:
  struct Options {
    Dims kernel = {};
    /// The stride is equal to the kernel unless it is given.
    Dims stride = {};
    /// The padding on either side is at most half of the kernel. It is never the maximum.
    Dims padding = 0;
    /// Whether the number of windows is rounded up (nn::max_pool).
    bool ceil_mode = false;
  };

  Tensor forward(const Tensor& input) override;
  std::string describe() const override;

 protected:
  /// ValueError for a kernel or stride below 1, or a padding that is negative or more than half of
  /// the kernel.
  MaxPool(int spatial, const char* name, const Options& options);

 private:
  PoolOptions options_;
};

/// Maps (N, C, L) to (N, C, L').
class MaxPool1d : public MaxPool {
 public:
  explicit MaxPool1d(const Options& options) : MaxPool(1, "MaxPool1d", options) {}
};

/// Maps (N, C, H, W) to (N, C, H', W').
class MaxPool2d : public MaxPool {
 public:
  explicit MaxPool2d(const Options& options) : MaxPool(2, "MaxPool2d", options) {}
};

/// Maps (N, C, D, H, W) to (N, C, D', H', W').
class MaxPool3d : public MaxPool {
 public:
  explicit MaxPool3d(const Options& options) : MaxPool(3, "MaxPool3d", options) {}
};

/// A layer that takes the mean of every window (nn::avg_pool).
class AvgPool2d : public Layer {
 public:
  struct Options {
    Dims kernel = {};
    /// The stride is equal to the kernel unless it is given.
    Dims stride = {};
    /// The number of zeros on either side is at most half of the kernel.
    Dims padding = 0;
    /// Whether the padding counts in the divisor of the mean.
    bool count_include_pad = true;
    /// Whether the number of windows is rounded up (nn::max_pool).
    bool ceil_mode = false;
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
    Dims output = 1;
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
