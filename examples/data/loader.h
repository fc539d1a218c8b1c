// Loader: decides which samples form which batch, and augments and normalizes them. Everything
// follows from (seed, epoch, sample), so the global batches of an epoch are the same for any number
// of ranks. Each rank takes its slice of every global batch.
#pragma once

#include "dataset.h"

#include <tutti/core/tensor.h>

namespace tutti::examples {

struct Batch {
  Tensor images;                           ///< (n, channels, height, width), normalized.
  Tensor labels;                           ///< int64 (n).
  std::int64_t global_size = 0;            ///< The samples in the slices of all ranks together.
  std::vector<std::int64_t> indices = {};  ///< Of the samples in the dataset.
};

class Loader {
 public:
  struct Options {
    std::int64_t batch_size = 128;  ///< Over all ranks. An epoch's last batch may be smaller.
    bool training = true;           ///< Whether to shuffle, flip and crop.
    std::uint64_t seed = 0;
    int rank = 0;
    int ranks = 1;
    MemoryFormat format = MemoryFormat::channels_last;
    DType dtype = float32;
    Device device = {};
  };

  /// `data` must outlive the loader. Throws a ValueError for a batch size below 1.
  Loader(const Dataset& data, Options options);

  std::int64_t batches_per_epoch() const;
  /// Returns this rank's slice of batch `index` of an epoch. Of the n samples of the batch, rank r
  /// of R gets those from n r / R up to, and without, n (r + 1) / R. There may be none, and there
  /// are none beyond the last batch. Horizontal flips, and random crops where the dataset asks for
  /// them, are drawn for each sample.
  Batch batch(std::int64_t epoch, std::int64_t index);

 private:
  void shuffle(std::int64_t epoch);
  void fill_sample(std::int64_t epoch, std::int64_t sample, float* target) const;

  const Dataset& data_;
  Options options_;
  std::vector<std::int64_t> order_;
  std::int64_t shuffled_ = -1;     // the epoch whose order order_ is
  std::vector<float> normalized_;  // the value of each byte in each channel: (256, channels)
};

}  // namespace tutti::examples
