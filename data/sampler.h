// DistributedSampler decides which samples form which batch of an epoch, and which of them a rank
// gets. Everything follows from (seed, epoch, batch), so a run can go on in the middle of an epoch.
#pragma once

#include <cstdint>
#include <vector>

namespace tutti::data {

/// What happens to the samples of an epoch that do not fill its last batch.
enum class Remainder {
  keep,  ///< The last batch is smaller. Ranks differ by one sample at most, and may have none.
  pad,   ///< The epoch's first samples follow, until every rank has the same number.
  drop   ///< They are left out. With `shuffle`, each epoch leaves out different ones. Ranks differ
         ///< by one sample at most.
};

/// Splits a dataset into batches, and every batch into the ranks' parts. The batches of all ranks
/// together do not depend on the number of ranks, except for what `pad` adds to the last one.
class DistributedSampler {
 public:
  struct Options {
    std::int64_t batch_size = 128;  ///< over all ranks
    bool shuffle = true;            ///< anew in each epoch; false keeps the order of the dataset
    std::uint64_t seed = 0;
    int rank = 0;
    int ranks = 1;
    Remainder remainder = Remainder::keep;
  };

  /// `size` is that of the dataset. Throws a ValueError for a negative size, a batch size below 1,
  /// a rank outside 0..ranks-1, a batch size that `pad` cannot divide by the ranks, and a `drop`
  /// that leaves no batch.
  DistributedSampler(std::int64_t size, Options options);

  const Options& options() const { return options_; }
  /// Returns the number of batches of an epoch, which is the same for every rank.
  std::int64_t batches() const;
  /// Returns the samples of an epoch in their order, for all ranks: padded or shortened.
  std::vector<std::int64_t> order(std::int64_t epoch) const;

  /// A part of the order of an epoch.
  struct Range {
    std::int64_t begin = 0, end = 0;
  };
  /// Returns where the samples of a batch stand, those of all ranks together.
  Range global_range(std::int64_t batch) const;
  /// Returns where this rank's samples of a batch stand. Of the n samples of the batch, rank r of R
  /// has those from n r / R up to, and without, n (r + 1) / R.
  Range rank_range(std::int64_t batch) const;

 private:
  std::int64_t size_;    // of the dataset
  std::int64_t length_;  // of the order
  Options options_;
};

}  // namespace tutti::data
