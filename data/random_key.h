// RandomKey names the random numbers that are drawn for one sample in one epoch. They follow from
// the seed, the epoch, the sample and the number of the transform that draws, so they do not depend
// on which thread or rank loads the sample, or on what was drawn before.
#pragma once

#include "../core/random.h"

#include <cstdint>

namespace tutti::data {

/// Names the random numbers of one sample in one epoch.
struct RandomKey {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t sample = 0;  ///< the index in the dataset

  /// Returns the generator of transform number `step`, at its start.
  Generator generator(std::uint64_t step) const;
};

}  // namespace tutti::data
