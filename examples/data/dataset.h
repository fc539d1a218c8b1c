// Dataset: labelled images in memory as bytes, and the functions that read them from files. The
// loader makes batches of them: order, augmentation and normalization are its business.
#pragma once

#include <tutti/core/error.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::examples {

using tutti::DataError;

struct Dataset {
  std::int64_t count = 0, channels = 0, height = 0, width = 0, classes = 0;
  std::vector<std::uint8_t> images = {};  ///< The pixels: (count, height, width, channels).
  std::vector<std::uint8_t> labels = {};  ///< One for each image, below `classes`.
  /// Mean and standard deviation of each channel, of pixels scaled to [0, 1].
  std::vector<float> mean = {}, deviation = {};
  /// Training images are shifted by up to this many pixels in each direction.
  int crop_padding = 0;

  /// Returns the number of bytes of one image.
  std::int64_t image_size() const { return height * width * channels; }
};

struct Datasets {
  Dataset train, test;
};

/// Returns "fashion-mnist", "mnist", "cifar10" and "synthetic".
const std::vector<std::string>& dataset_names();
/// Returns the folder in which a dataset is looked for by default; empty for "synthetic".
std::string default_folder(const std::string& name);
/// Loads a dataset by name. Throws a DataError where a file is missing, truncated or corrupt, and a
/// ValueError for an unknown name.
Datasets load_datasets(const std::string& name, const std::string& folder);

/// Returns this rank's part of the data: of n samples those from n rank / ranks up to, and without,
/// n (rank + 1) / ranks.
Dataset shard(const Dataset& data, int rank, int ranks);

/// Loads a dataset of the MNIST family from its IDX files, gzipped or not
/// (http://yann.lecun.com/exdb/mnist/). `prefix` is "train" or "t10k". Throws a DataError for a
/// file that is not valid or has more than a million images. Memory grows with what the file holds,
/// not with what it claims.
Dataset load_idx(const std::string& folder, const std::string& prefix);
/// Loads CIFAR-10 from the files of its binary version
/// (https://www.cs.toronto.edu/~kriz/cifar.html). Throws a DataError for a file that is not valid
/// or has more than 100,000 images.
Dataset load_cifar10(const std::string& folder, const std::vector<std::string>& files);
/// Returns the size of a data file in bytes. Throws a DataError unless it is a regular file, since
/// a folder, a pipe or a device has no end that could be checked.
std::int64_t data_file_size(const std::string& path);
/// Makes up images: every class has a smooth pattern of its own, under noise. The images are the
/// same for the same arguments.
Dataset make_synthetic(std::int64_t count, std::int64_t channels, std::int64_t size,
                       std::uint64_t seed);

}  // namespace tutti::examples
