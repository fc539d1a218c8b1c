// Convolution layers over one to three spatial dimensions. One implementation; Conv1d/2d/3d fix the
// rank.
#pragma once

#include "extent.h"
#include "functional/conv.h"
#include "module.h"

namespace tutti::nn {

/// y = cross-correlation of x (N, in, ...) with weight (out, in / groups, kernel...), plus bias.
/// See nn::convolution.
class Conv : public Layer {
 public:
  struct Options {
    std::int64_t in = 0;  ///< channels
    std::int64_t out = 0;
    Extent kernel = {};  ///< this and the next three: one number, or one for each spatial dimension
    Extent stride = 1;
    Extent padding = 0;  ///< zeros on either side
    Extent dilation = 1;
    std::int64_t groups = 1;
    bool bias = true;
  };

  Tensor forward(const Tensor& input) override;
  std::string describe() const override;
  const Options& options() const { return options_; }

 protected:
  /// Weight and bias start as U(-1/sqrt(f), 1/sqrt(f)), f = in / groups * kernel size. ValueError
  /// for channels, kernel, stride or dilation below 1, a negative padding, or groups that do not
  /// divide the channels.
  Conv(int spatial, const char* name, const Options& options);

 private:
  const char* name_;
  Options options_;
  Dims kernel_;
  kernels::ConvOptions geometry_;

 public:
  Tensor& weight;  ///< (out, in / groups, kernel...)
  Tensor& bias;    ///< (out); undefined where there is none
};

/// (N, in, L) -> (N, out, L').
class Conv1d : public Conv {
 public:
  explicit Conv1d(const Options& options) : Conv(1, "Conv1d", options) {}
};

/// (N, in, H, W) -> (N, out, H', W').
class Conv2d : public Conv {
 public:
  explicit Conv2d(const Options& options) : Conv(2, "Conv2d", options) {}
};

/// (N, in, D, H, W) -> (N, out, D', H', W').
class Conv3d : public Conv {
 public:
  explicit Conv3d(const Options& options) : Conv(3, "Conv3d", options) {}
};

}  // namespace tutti::nn
