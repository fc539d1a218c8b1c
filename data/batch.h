// Batch is what a DataLoader hands out, and BatchTransform a change of a whole batch.
#pragma once

#include "../core/random.h"
#include "../core/tensor.h"

#include <functional>
#include <span>
#include <vector>

namespace tutti::data {

/// The samples of one step that one rank computes with.
struct Batch {
  Tensor images;  ///< (n, ...): the samples' images after the transforms
  Tensor labels;  ///< int64 (n); with masks the class of each pixel, int64 (n, height, width)
  Tensor soft_labels = {};  ///< float32 (n, classes), where a BatchTransform has made them
  std::vector<std::int64_t> indices = {};  ///< of the samples in the dataset
  std::int64_t epoch = 0;
  std::int64_t number = 0;       ///< of the batch in its epoch, from 0
  std::int64_t global_size = 0;  ///< the samples in the batches of all ranks together
};

/// Changes a batch in place. It is given one generator for each sample, in their order. It is
/// called from several threads at a time, for different batches.
using BatchTransform = std::function<void(Batch& batch, std::span<Generator> randoms)>;

}  // namespace tutti::data
