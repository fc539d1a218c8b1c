// Transposed convolution layers over one to three spatial dimensions. ConvTranspose implements them
// all; ConvTranspose1d, ConvTranspose2d and ConvTranspose3d fix the number of dimensions. The
// operation itself is nn::conv_transpose.
#pragma once

#include "functional/conv_transpose.h"
#include "module.h"

namespace tutti::nn {

/// A layer that computes the transposed convolution of x (N, in, ...) with weight (in, out /
/// groups, kernel...), plus bias (nn::conv_transpose). With a stride it enlarges: a kernel of 2
/// with a stride of 2 doubles every size.
class ConvTranspose : public Layer {
 public:
  struct Options {
    /// The numbers of channels of input and output.
    std::int64_t in = 0;
    std::int64_t out = 0;
    Dims kernel = {};
    Dims stride = 1;
    /// The number of elements that are left out on either side of each spatial dimension.
    Dims padding = 0;
    /// The number of elements that each spatial dimension has more on its right; below the stride.
    Dims output_padding = 0;
    Dims dilation = 1;
    std::int64_t groups = 1;
    bool bias = true;
  };

  Tensor forward(const Tensor& input) override;
  std::string describe() const override;
  /// Returns the options, as Conv::options() does.
  const Options& options() const { return options_; }

 protected:
  /// Draws weight and bias from U(-1/sqrt(f), 1/sqrt(f)) with f = out / groups * kernel size, as
  /// PyTorch does. ValueError for channels, kernel, stride or dilation below 1, a negative padding
  /// or output_padding, or groups that do not divide the channels.
  ConvTranspose(int spatial, const char* name, const Options& options);

 private:
  Options options_;

 public:
  /// The weight has shape (in, out / groups, kernel...).
  const Tensor& weight;
  /// The bias has shape (out,), or is undefined if the layer has none.
  const Tensor& bias;
};

/// Maps (N, in, L) to (N, out, L').
class ConvTranspose1d : public ConvTranspose {
 public:
  explicit ConvTranspose1d(const Options& options) : ConvTranspose(1, "ConvTranspose1d", options) {}
};

/// Maps (N, in, H, W) to (N, out, H', W').
class ConvTranspose2d : public ConvTranspose {
 public:
  explicit ConvTranspose2d(const Options& options) : ConvTranspose(2, "ConvTranspose2d", options) {}
};

/// Maps (N, in, D, H, W) to (N, out, D', H', W').
class ConvTranspose3d : public ConvTranspose {
 public:
  explicit ConvTranspose3d(const Options& options) : ConvTranspose(3, "ConvTranspose3d", options) {}
};

}  // namespace tutti::nn
