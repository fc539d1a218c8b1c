// Transform is a step between reading a sample and making a batch of it: a function of an image and
// of random numbers. The classes of this folder are Transforms, and so is every lambda of that
// form. Each class draws its parameters and then calls a function of the same header that has no
// randomness.
#pragma once

#include "../../core/tensor.h"
#include "../random_key.h"

#include <functional>
#include <utility>
#include <vector>

namespace tutti::data {

/// Returns a changed image. Until Normalize an image is uint8 (height, width, channels), contiguous
/// on the CPU; from there on it is float32 (channels, height, width). A Transform must leave its
/// argument as it is, and it is called from many threads at a time.
using Transform = std::function<Tensor(const Tensor& image, Generator& random)>;

/// Applies the transforms in turn. Number i draws from key.generator(i).
Tensor apply_transforms(const std::vector<Transform>& transforms, const Tensor& image,
                        const RandomKey& key);

/// A rectangle of an image, in pixels.
struct Box {
  std::int64_t top = 0, left = 0, height = 0, width = 0;
  bool operator==(const Box&) const = default;
};

/// Throws a ShapeError, DTypeError or DeviceError that names `op` unless `image` is uint8 (height,
/// width, channels) with 1 to 4 channels and no empty side, contiguous, on the CPU.
void check_image(const Tensor& image, const char* op);

/// Throws a ValueError that names `op` unless low <= high and low is above, or equal to, `least`.
void check_range(double low, double high, double least, const char* op, const char* what);

/// Throws a ValueError that names `op` unless `p` is a probability.
void check_probability(double p, const char* op);

/// Draws the height and width of a rectangle whose area is a uniform part, within `scale`, of that
/// of height x width, and whose ratio of width to height is log-uniform within `ratio`. The result
/// may be larger than the image, and it has no position.
Box draw_box_size(std::int64_t height, std::int64_t width, const std::pair<double, double>& scale,
                  const std::pair<double, double>& ratio, Generator& random);

}  // namespace tutti::data
