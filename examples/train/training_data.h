// TrainingData: what the trainer trains and tests on, with all that the network, the preprocessing
// and the saved weights have to know about it, and how ranks, and a run and its resume, find out
// whether their data are the same (same_data.cpp). How images become batches is in
// training_batches.h.
#pragma once

#include "options.h"

#include <tutti/core/state_dict.h>
#include <tutti/data/image_folder.h>
#include <tutti/data/segmentation_folder.h>
#include <tutti/data/transforms/transform.h>
#include <tutti/distributed/process_group.h>
#include <tutti/nn/models/model_card.h>

#include <array>
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
  /// Numbers and fingerprints of all images (describe_images()).
  Metadata images = {};
  bool are_files = false;  ///< whether images are read from files, on demand
  /// The folders of classification: training and test.
  std::vector<std::shared_ptr<const data::ImageFolder>> folders = {};
  /// The folders of segmentation: training and test.
  std::vector<std::shared_ptr<const data::SegmentationFolder>> scenes = {};
  std::string first_look = {};  ///< lines about the scenes, which a run prints (data_check.h)
};

/// Returns what the text of an error of a picture that cannot be used ends with: the flags that
/// help.
std::string advice_on_broken_files(const std::string& error);

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

/// Throws a ValueError, with the same text on every rank, unless all ranks have as many training
/// and test images, the same classes and the same fingerprints. Processes on several hosts read
/// copies of the data, which may differ; ranks that are threads share one copy and need no check.
/// This call is collective.
void expect_same_data(const TrainingData& data, const ProcessGroup& group);

}  // namespace tutti::examples
