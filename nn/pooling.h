// Pooling layers over the two spatial dimensions of (N, C, H, W). The functions
// (functional/pooling.h) do the work, for one and three dimensions too.
#pragma once

#include "extent.h"
#include "functional/pooling.h"
#include "module.h"

namespace tutti::nn {

class MaxPool2d : public Layer {
 public:
  struct Options {
    Extent kernel = {};
    Extent stride = {};  ///< the kernel where not given
    Extent padding = 0;  ///< on either side, at most half of the kernel; never the maximum
  };
  /// ValueError for a kernel or stride below 1, or a padding that is negative or more than half of
  /// the kernel.
  explicit MaxPool2d(const Options& options);

  Tensor forward(const Tensor& input) override;
  std::string describe() const override;

 private:
  PoolOptions options_;
};

class AvgPool2d : public Layer {
 public:
  struct Options {
    Extent kernel = {};
    Extent stride = {};             ///< the kernel where not given
    Extent padding = 0;             ///< zeros on either side, at most half of the kernel
    bool count_include_pad = true;  ///< whether padding counts in the divisor
  };
  /// ValueError as for MaxPool2d.
  explicit AvgPool2d(const Options& options);

  Tensor forward(const Tensor& input) override;
  std::string describe() const override;

 private:
  PoolOptions options_;
};

/// Averages over windows that cover the input evenly, so that the output has the size asked for.
class AdaptiveAvgPool2d : public Layer {
 public:
  struct Options {
    Extent output = 1;
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
