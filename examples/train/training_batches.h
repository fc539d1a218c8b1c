// How the trainer's images become batches: the options of the loaders, this rank's part of the
// batch of each step, its micro batches, and the check, before the first step, that batch
// normalisation finds a variance in every part. training_data.h owns the images.
#pragma once

#include "metrics.h"
#include "training_data.h"

#include <tutti/core/cuda/stream.h>
#include <tutti/data/loader.h>
#include <tutti/distributed/data_parallel/join.h>

#include <array>
#include <chrono>
#include <exception>
#include <optional>
#include <vector>

namespace tutti::examples {

/// Returns the dtype of weights and images; 16-bit precisions go through Autocast.
DType storage_dtype(const TrainOptions& options);

/// Whether training images are mixed, so that batches have soft labels.
bool mixes_images(const TrainOptions& options);

/// Returns the options of a run whose steps are the batches on which batch normalisation is
/// examined at the end of an epoch: micro batches, max_steps of them. It is 0 where no option asks
/// for them.
TrainOptions statistics_options(TrainOptions options);

/// Returns the ranks that share this rank's batch statistics, with options.sync_bn. This call is
/// collective.
ProcessGroup statistics_group(const TrainOptions& options, const ProcessGroup& group);

/// Returns the images of a step that each of `ranks` ranks takes from its own with --sharded.
std::int64_t own_batch_size(const TrainOptions& options, int ranks);

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
  using Position = data::DataLoader::State;

  TrainingBatches(const TrainOptions& options, const TrainingData& data, const ProcessGroup& group,
                  Device device);

  std::int64_t batches_per_epoch() const { return loader_.batches_per_epoch(); }
  /// Returns the batch of a step. It is empty where the rank has used up images of its own. Throws
  /// what look_ahead() has met. This call is collective with options.sharded.
  data::Batch load(Position position);
  /// Waits for the batch of the next step, and keeps it for load(). Returns whether it was loaded.
  bool look_ahead(Position next);
  /// Returns the error that look_ahead() has met; null for none.
  std::exception_ptr error() const { return error_; }
  /// Returns how long this rank has waited for images so far.
  std::chrono::duration<double> waited() const { return loader_.waited(); }

 private:
  // The tensors of a batch on the GPU, and the end of the step that used them last.
  struct BatchOnDevice {
    data::Batch batch;
    cuda::Event used;
  };
  data::Batch next(Position position);
  data::Batch empty_batch() const;
  void copy_to_device(data::Batch& batch);

  const TrainOptions& options_;
  const TrainingData& data_;
  const Device device_;
  std::optional<cuda::Stream> copies_;      // the stream of the copies to a GPU
  std::array<BatchOnDevice, 2> on_device_;  // that of the last step, and that before
  data::DataLoader loader_;
  distributed::Join join_;
  std::optional<data::Batch> ahead_;
  std::exception_ptr error_;
};

/// Returns the number of micro batches of a step. It is the same on all ranks, and so small that
/// some rank has an image of every micro batch: one without images has no batch statistics. A short
/// last batch gets fewer micro batches of about the usual size, except with --sharded, where ranks
/// may share a short batch unevenly, so that some have a whole batch to divide.
std::int64_t micro_batches(const TrainOptions& options, std::int64_t ranks,
                           std::int64_t global_size);

/// Returns the number of steps of an epoch with so many training images, on ranks with the parts
/// that shard() gives them if options.sharded.
std::int64_t steps_per_epoch(const TrainOptions& options, std::int64_t ranks, std::int64_t images);

/// Returns how long a run with so many steps in an epoch is.
RunLength run_length(const TrainOptions& options, std::int64_t steps_per_epoch);

/// Returns the first step of an epoch that the run makes, counted from 1, in which ranks of one
/// scope have one image of a micro batch together; 0 if there is none. `scopes` has for each rank a
/// number that is that of the ranks with which it shares batch statistics.
std::int64_t step_with_a_lone_image(const TrainOptions& options,
                                    const std::vector<std::int64_t>& scopes, std::int64_t images);

/// Throws ErrorOnAllRanks, which names the flag that helps, if a step would normalise over one
/// value per channel, or a batch that --recompute-statistics or --bn-report examine, or if
/// --drop-last leaves no batch. Every rank calls it with the whole data. This call is collective.
void check_batches(const TrainOptions& options, const TrainingData& data,
                   const ProcessGroup& group);

}  // namespace tutti::examples
