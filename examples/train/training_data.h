// TrainingData: what the trainer trains and tests on, with all that the network, the preprocessing
// and the saved weights have to know about it, and how ranks, and a run and its resume, find out
// whether their data are the same. Then how images become batches: the options of the loaders, this
// rank's part of the batch of each step, its micro batches, and the check, before the first step,
// that batch normalisation finds a variance in every part.
#pragma once

#include "options.h"

#include <tutti/core/cuda/stream.h>
#include <tutti/core/state_dict.h>
#include <tutti/data/image_folder.h>
#include <tutti/data/loader.h>
#include <tutti/data/transforms/transform.h>
#include <tutti/distributed/data_parallel/join.h>
#include <tutti/distributed/process_group.h>
#include <tutti/nn/model_card.h>

#include <array>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace tutti::examples {

/// The metadata that describe the data of a run (describe_data()).
inline constexpr std::array data_metadata{
    "classes",     "class_names",      "train_images", "train_fingerprint",
    "test_images", "test_fingerprint", "mean",         "std",
    "channels",    "resize_size",      "input_size",   "model"};

struct TrainingData {
  std::shared_ptr<const data::Dataset> train = {}, test = {};
  std::int64_t channels = 0, classes = 0;
  std::int64_t image_size = 0;  ///< the height and width of the images that the network gets
  /// The shorter side that a test image is scaled to, before its centre is cropped to image_size; 0
  /// where all images have image_size from the beginning.
  std::int64_t resize_size = 0;
  std::vector<std::string> class_names = {};  ///< empty where the classes have no names
  /// Mean and standard deviation of each channel, of pixels scaled to [0, 1].
  std::vector<float> mean = {}, deviation = {};
  /// What happens to the uint8 images before they are normalised.
  std::vector<data::Transform> train_transforms = {}, test_transforms = {};
  /// Numbers and fingerprints of all images (describe_images()). shard() keeps them.
  Metadata images = {};
  bool are_files = false;  ///< whether images are read from files, on demand
  /// The folders whose broken files may be replaced.
  std::vector<std::shared_ptr<const data::ImageFolder>> folders = {};
};

/// Returns the files of `data.folders` that any rank has found broken and replaced; on all ranks
/// but rank 0 some may be missing. This call is collective.
std::vector<data::ImageFolder::BrokenFile> replaced_files(const TrainingData& data,
                                                          const ProcessGroup& group);

/// Decodes every picture of `data.folders` with `threads` threads, and returns lines that list
/// those that are broken.
std::string check_files(const TrainingData& data, int threads);

/// Returns the names that --dataset takes.
const std::vector<std::string>& dataset_names();
/// Returns the folder in which a dataset is looked for by default; empty if it has none.
std::string default_folder(const std::string& name);

/// Opens the dataset that the options name. Throws a DataError of one line where a file or folder
/// is missing or corrupt, and a ValueError for an unknown name.
TrainingData load_training_data(const TrainOptions& options);

/// How many images of which form are made up.
struct SyntheticOptions {
  std::int64_t train = 2048, test = 512;  ///< numbers of images
  std::int64_t channels = 3, size = 32;
  std::uint64_t seed = 1;
};
/// Makes up training and test images of 10 classes.
TrainingData make_synthetic(const SyntheticOptions& options = {});

/// Returns the data with a rank's own part of the training images: of n images those from n rank /
/// ranks up to, and without, n (rank + 1) / ranks.
TrainingData shard(TrainingData data, int rank, int ranks);

/// Returns the card of the network that `options` train on `data`. Throws a DataError of one line
/// for a class name that a card cannot hold: one that is not UTF-8 or has control characters.
nn::ModelCard model_card(const TrainOptions& options, const TrainingData& data);

/// Returns the numbers and fingerprints of the training and the test images. The fingerprint of a
/// folder is a hash of the paths of its files, in their order; that of images in memory is a hash
/// of 256 of them and of their labels.
Metadata describe_images(const TrainingData& data);

/// Returns what a checkpoint says about the data of its run: the model card and data.images;
/// nothing for data without these.
Metadata describe_data(const TrainOptions& options, const TrainingData& data);

/// Throws a DataError, with the same text on every rank, unless all ranks have as many training and
/// test images, the same classes and the same fingerprints. Processes on several hosts read copies
/// of the data, which may differ; ranks that are threads share one copy and need no check. Every
/// rank calls it with the whole data. This call is collective.
void expect_same_data(const TrainingData& data, const ProcessGroup& group);

// ---- Batches

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
