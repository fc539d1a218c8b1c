// TrainingBatches: this rank's part of the batch of each training step, on its device. It looks one
// batch ahead, so that ranks can stop together, with a checkpoint, before a step whose images
// cannot be read. How images are read and changed is decided in loaders.h.
#pragma once

#include "dataset.h"
#include "options.h"

#include <tutti/data/loader.h>
#include <tutti/distributed/data_parallel/join.h>

#include <exception>

namespace tutti::examples {

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
  data::Batch next(Position position);
  data::Batch empty_batch() const;

  const TrainOptions& options_;
  const TrainingData& data_;
  const Device device_;
  data::DataLoader loader_;
  distributed::Join join_;
  std::optional<data::Batch> ahead_;
  std::exception_ptr error_;
};

}  // namespace tutti::examples
