// Convolution layers over one to three spatial dimensions. Conv implements them all; Conv1d, Conv2d
// and Conv3d fix the number of dimensions. The operation itself is nn::convolution.
#pragma once

#include "functional/conv.h"
#include "module.h"

namespace tutti::nn {

/// A layer that computes the cross-correlation of x (N, in, ...) with weight (out, in / groups,
/// kernel...), plus bias (nn::convolution).
class Conv : public Layer {
 public:
  struct Options {
    /// The numbers of channels of input and output.
    std::int64_t in = 0;
    std::int64_t out = 0;
    Dims kernel = {};
    Dims stride = 1;
    /// The number of zeros that are added on either side of each spatial dimension.
    Dims padding = 0;
    Dims dilation = 1;
    std::int64_t groups = 1;
    bool bias = true;
  };

  Tensor forward(const Tensor& input) override;
  std::string describe() const override;
  /// Returns the options, of which kernel, stride, padding and dilation have one number for each
  /// spatial dimension.
  const Options& options() const { return options_; }

 protected:
  /// Draws weight and bias from U(-1/sqrt(f), 1/sqrt(f)) with f = in / groups * kernel size.
  /// ValueError for channels, kernel, stride or dilation below 1, a negative padding, or groups
  /// that do not divide the channels.
  Conv(int spatial, const char* name, const Options& options);

 private:
  Options options_;

 public:
  /// The weight has shape (out, in / groups, kernel...).
  const Tensor& weight;
  /// The bias has shape (out,), or is undefined if the layer has none.
  const Tensor& bias;
};

/// Maps (N, in, L) to (N, out, L').
class Conv1d : public Conv {
 public:
  explicit Conv1d(const Options& options) : Conv(1, "Conv1d", options) {}
};

/// Maps (N, in, H, W) to (N, out, H', W').
class Conv2d : public Conv {
 public:
  explicit Conv2d(const Options& options) : Conv(2, "Conv2d", options) {}
};

/// Maps (N, in, D, H, W) to (N, out, D', H', W').
class Conv3d : public Conv {
 public:
  explicit Conv3d(const Options& options) : Conv(3, "Conv3d", options) {}
};

}  // namespace tutti::nn
