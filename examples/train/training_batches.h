// How the trainer's images become batches: the options of the loaders, this rank's part of the
// batch of each step, and its micro batches. training_data.h owns the images.
#pragma once

#include "metrics.h"
#include "training_data.h"

#include <tutti/core/cuda/stream.h>
#include <tutti/data/loader.h>

#include <array>
#include <chrono>
#include <optional>

namespace tutti::examples {

/// Returns the dtype of weights and images; 16-bit precisions go through Autocast.
DType storage_dtype(const TrainOptions& options);

/// Returns the options of a run whose steps are the batches on which batch normalisation is
/// examined at the end of an epoch: micro batches, max_steps of them. It is 0 where no option asks
/// for them.
TrainOptions statistics_options(TrainOptions options);

/// Returns the ranks that share this rank's batch statistics, with options.sync_bn. This call is
/// collective.
ProcessGroup statistics_group(const TrainOptions& options, const ProcessGroup& group);

/// Returns the options for the batches of training steps, which are mixed if the options say so.
data::DataLoader::Options train_loader_options(const TrainOptions& options,
                                               const TrainingData& data, const ProcessGroup& group,
                                               Device device);
/// Returns the options for the training images on which statistics are taken: augmented, but never
/// mixed, in batches as large as those over which training normalises (micro batches with
/// --accumulate).
data::DataLoader::Options statistics_loader_options(const TrainOptions& options,
                                                    const TrainingData& data,
                                                    const ProcessGroup& group, Device device);
/// Returns the options for test images.
data::DataLoader::Options test_loader_options(const TrainOptions& options, const TrainingData& data,
                                              const ProcessGroup& group, Device device);

class TrainingBatches {
 public:
  TrainingBatches(const TrainOptions& options, const TrainingData& data, const ProcessGroup& group,
                  Device device);

  std::int64_t batches_per_epoch() const { return loader_.batches_per_epoch(); }
  /// Returns the batch of a step, on the device.
  data::Batch load(data::DataLoader::State position);
  /// Returns how long this rank has waited for images so far.
  std::chrono::duration<double> waited() const { return loader_.waited(); }

 private:
  // The tensors of a batch on the GPU, and the end of the step that used them last.
  struct BatchOnDevice {
    data::Batch batch;
    cuda::Event used;
  };
  void copy_to_device(data::Batch& batch);

  const Device device_;
  std::optional<cuda::Stream> copies_;      // the stream of the copies to a GPU
  std::array<BatchOnDevice, 2> on_device_;  // that of the last step, and that before
  data::DataLoader loader_;
};

/// Returns the number of micro batches of a step. It is the same on all ranks, and so small that
/// some rank has an image of every micro batch: one without images has no batch statistics. A short
/// last batch gets fewer micro batches of about the usual size.
std::int64_t micro_batches(const TrainOptions& options, std::int64_t ranks,
                           std::int64_t global_size);

/// Returns the number of steps of an epoch with so many training images.
std::int64_t steps_per_epoch(const TrainOptions& options, std::int64_t images);

/// Returns how long a run with so many steps in an epoch is.
RunLength run_length(const TrainOptions& options, std::int64_t steps_per_epoch);

}  // namespace tutti::examples
