// Transform is a step between reading a sample and making a batch of it: a function of an image, or
// of a sample, and of random numbers. The classes of this folder are Transforms, and so is every
// lambda of such a form. Each class draws its parameters and then calls a function of the same
// header that has no randomness.
#pragma once

#include "../../core/random.h"
#include "../dataset.h"

#include <concepts>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace tutti::data {

/// Changes samples. Until Normalize an image is uint8 (height, width, channels), contiguous on the
/// CPU; from there on it is float32 (channels, height, width). A mask stays uint8 (height, width,
/// 1).
///
/// A Transform is made of a function `Tensor(const Tensor& image, Generator& random)`, which gets
/// the image alone and must leave each pixel at its place, such as Normalize; or of a function
/// `Sample(Sample sample, Generator& random)`, which moves the pixels of image and mask alike, such
/// as RandomCrop. It must leave the tensors that it gets as they are, and it is called from many
/// threads at a time.
class Transform {
 public:
  template <class Function>
  requires(!std::same_as<Function, Transform>) Transform(Function function) {
    if constexpr (std::is_invocable_r_v<Sample, Function&, Sample, Generator&>)
      function_ = std::move(function);
    else
      function_ = [function = std::move(function)](Sample sample, Generator& random) mutable {
        sample.image = function(sample.image, random);
        return sample;
      };
  }
  Sample operator()(Sample sample, Generator& random) const {
    return function_(std::move(sample), random);
  }
  /// Changes an image without a mask.
  Tensor operator()(const Tensor& image, Generator& random) const {
    return function_({.image = image}, random).image;
  }

 private:
  std::function<Sample(Sample sample, Generator& random)> function_;
};

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

/// Applies the transforms in turn. Number i draws from key.generator(i). Throws a ShapeError where
/// the mask, if there is one, has not the form of a mask of its image, at the beginning or after a
/// transform.
Sample apply_transforms(const std::vector<Transform>& transforms, Sample sample,
                        const RandomKey& key);

/// A rectangle of an image, in pixels.
struct Box {
  std::int64_t top = 0, left = 0, height = 0, width = 0;
  bool operator==(const Box&) const = default;
};

}  // namespace tutti::data
