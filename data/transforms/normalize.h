// Normalize turns bytes into the float32 numbers that a network takes.
#pragma once

#include "transform.h"

namespace tutti::data {

/// Returns (byte / 255 - mean) / deviation for each channel of a uint8 image (height, width,
/// channels), as float32 (channels, height, width) with the strides of `format` in a batch. `mean`
/// and `deviation` have one number for each channel, or one for all. Throws a ValueError for
/// another number of them, a mean that is not finite, or a deviation that is not positive.
Tensor normalize(const Tensor& image, const std::vector<float>& mean,
                 const std::vector<float>& deviation,
                 MemoryFormat format = MemoryFormat::contiguous);

/// Normalises images, and is the last transform of most pipelines. The defaults are the mean and
/// standard deviation of ImageNet.
class Normalize {
 public:
  struct Options {
    std::vector<float> mean = {0.485f, 0.456f, 0.406f};
    std::vector<float> deviation = {0.229f, 0.224f, 0.225f};
    /// The layout of the batches. channels_last is faster on the CPU.
    MemoryFormat format = MemoryFormat::contiguous;
  };
  explicit Normalize(Options options);
  Normalize() : Normalize(Options{}) {}
  Tensor operator()(const Tensor& image, Generator&) const {
    return normalize(image, options_.mean, options_.deviation, options_.format);
  }

 private:
  Options options_;
};

}  // namespace tutti::data
