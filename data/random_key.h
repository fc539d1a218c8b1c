// RandomKey names the random numbers that are drawn for one sample in one epoch. They follow from
// the seed, the epoch, the sample and the number of the transform that draws, so they do not depend
// on which thread or rank loads the sample, or on what was drawn before.
#pragma once

#include "../core/philox.h"
#include "../core/random.h"

#include <cstdint>

namespace tutti::data {

/// Names the random numbers of one sample in one epoch.
struct RandomKey {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t sample = 0;  ///< the index in the dataset

  /// Returns the generator of transform number `step`, at its start. Each part of the key is
  /// encrypted with the key made of the parts before it.
  Generator generator(std::uint64_t step) const {
    std::uint64_t key = seed;
    for (const std::uint64_t part :
         {static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(sample), step}) {
      const PhiloxBlock block = philox(key, part);
      key = std::uint64_t{block.words[0]} << 32 | block.words[1];
    }
    return Generator(key);
  }
};

}  // namespace tutti::data
