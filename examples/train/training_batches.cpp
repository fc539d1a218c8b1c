#include "training_batches.h"

#include "loaders.h"

#include <tutti/core/create.h>
#include <tutti/core/trace.h>

namespace tutti::examples {

TrainingBatches::TrainingBatches(const TrainOptions& options, const TrainingData& data,
                                 const ProcessGroup& group, Device device)
    : options_(options),
      data_(data),
      device_(device),
      loader_(data.train, train_loader_options(options, data, group, device)),
      join_(group, {.uneven = options.uneven}) {}

data::Batch TrainingBatches::load(Position position) {
  if (error_) std::rethrow_exception(error_);
  data::Batch batch = ahead_ ? std::move(*std::exchange(ahead_, {})) : next(position);
  batch.images = batch.images.to(device_);
  batch.labels = batch.labels.to(device_);
  if (batch.soft_labels.defined()) batch.soft_labels = batch.soft_labels.to(device_);
  if (!options_.sharded) return batch;  // every rank knows the size of the global batch
  if (!join_.step(batch.global_size)) fail<Error>("no rank has images for the next step");
  batch.global_size = join_.samples();
  return batch;
}

bool TrainingBatches::look_ahead(Position position) {
  try {
    ahead_ = next(position);
    return true;
  } catch (...) {
    error_ = std::current_exception();
    return false;
  }
}

data::Batch TrainingBatches::next(Position position) {
  const trace::Span span("load");
  if (position.batch >= loader_.batches_per_epoch()) return empty_batch();
  if (loader_.state() != position) loader_.set_state(position);
  return loader_.next().value();
}

data::Batch TrainingBatches::empty_batch() const {
  const TensorOptions floating{.dtype = storage_dtype(options_)};
  data::Batch batch{.images = empty({0, data_.channels, data_.image_size, data_.image_size},
                                    floating, options_.memory_format),
                    .labels = empty({0}, {.dtype = int64})};
  if (mixes_images(options_)) batch.soft_labels = empty({0, data_.classes}, floating);
  return batch;
}

}  // namespace tutti::examples
