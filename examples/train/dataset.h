// TrainingData: what the trainer trains and tests on, with all that the network, the preprocessing
// and the saved weights have to know about it. Reading and batching are the library's business
// (data/).
#pragma once

#include "options.h"

#include <tutti/core/state_dict.h>
#include <tutti/data/image_folder.h>
#include <tutti/data/transforms/transform.h>
#include <tutti/distributed/process_group.h>

#include <memory>
#include <string>
#include <vector>

namespace tutti::examples {

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
  /// Numbers and fingerprints of all images (describe_images() in same_data.h). shard() keeps them.
  Metadata images = {};
  /// The folders that the images are read from, on demand; empty for images in memory.
  std::vector<std::shared_ptr<const data::ImageFolder>> folders = {};
};

/// Returns the files of `data.folders` that any rank has found broken and replaced; on all ranks
/// but rank 0 some may be missing. This call is collective.
std::vector<data::ImageFolder::BrokenFile> replaced_files(const TrainingData& data,
                                                          const ProcessGroup& group);

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

}  // namespace tutti::examples
