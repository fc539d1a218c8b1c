// Loader: which samples form which batch, and what is done to them. Everything follows from (seed,
// epoch, sample), so that the batches of an epoch are the same for any number of ranks, each taking
// its slice of every one.
#pragma once

#include "dataset.h"

#include <tutti/core/tensor.h>

namespace tutti::examples {

struct Batch {
  Tensor images;                 ///< (n, channels, height, width), normalised
  Tensor labels;                 ///< int64 (n)
  std::int64_t global_size = 0;  ///< of the slices of all ranks together
};

class Loader {
 public:
  struct Options {
    std::int64_t batch_size = 128;  ///< over all ranks; the last batch of an epoch may be smaller
    bool training = true;           ///< shuffle, flip and crop
    std::uint64_t seed = 0;
    int rank = 0;
    int ranks = 1;
    MemoryFormat format = MemoryFormat::channels_last;
    DType dtype = float32;
    Device device = {};
  };

  /// `data` must outlive the loader. ValueError for a batch size below 1.
  Loader(const Dataset& data, Options options);

  std::int64_t batches_per_epoch() const;
  /// This rank's slice of batch `index` of an epoch: rank r of R has samples [n r / R, n (r + 1) /
  /// R) of its n, which may be none, as it is of an index beyond the last. Horizontal flips, and
  /// random crops where the dataset asks for them, are drawn per sample.
  Batch batch(std::int64_t epoch, std::int64_t index);

 private:
  void shuffle(std::int64_t epoch);

  const Dataset& data_;
  Options options_;
  std::vector<std::int64_t> order_;
  std::int64_t shuffled_ = -1;     // the epoch that order_ is for
  std::vector<float> normalized_;  // value of each byte in each channel
};

}  // namespace tutti::examples
