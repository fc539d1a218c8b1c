// Transform is a step between reading a sample and making a batch of it: a function of an image and
// of random numbers. The classes of this folder are Transforms, and so is every lambda of that
// form. Each class draws its parameters and then calls a function of the same header that has no
// randomness.
#pragma once

#include "../../core/random.h"
#include "../../core/tensor.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace tutti::data {

/// Returns a changed image. Until Normalize an image is uint8 (height, width, channels), contiguous
/// on the CPU; from there on it is float32 (channels, height, width). A Transform must leave its
/// argument as it is, and it is called from many threads at a time.
using Transform = std::function<Tensor(const Tensor& image, Generator& random)>;

/// Names the random numbers that are drawn for one sample in one epoch. They follow from these
/// numbers and that of the transform that draws, so they do not depend on which thread or rank
/// loads the sample, or on what was drawn before.
struct RandomKey {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t sample = 0;  ///< the index in the dataset

  /// Returns the generator of transform number `step`, at its start.
  Generator generator(std::uint64_t step) const;
};

/// Applies the transforms in turn. Number i draws from key.generator(i).
Tensor apply_transforms(const std::vector<Transform>& transforms, const Tensor& image,
                        const RandomKey& key);

/// A rectangle of an image, in pixels.
struct Box {
  std::int64_t top = 0, left = 0, height = 0, width = 0;
  bool operator==(const Box&) const = default;
};

}  // namespace tutti::data
