// How the trainer makes batches: the options of its data loaders for training images, for the
// images on which batch normalisation is examined, and for test images. Batches come in the layout
// and dtype that a step needs, made on the threads of the loader.
#pragma once

#include "dataset.h"
#include "options.h"

#include <tutti/data/loader.h>
#include <tutti/distributed/process_group.h>

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

}  // namespace tutti::examples
