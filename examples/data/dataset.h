// Dataset: labelled images in memory as bytes, and where they come from. What a batch looks like
// (order, augmentation, normalisation) is the loader's business.
#pragma once

#include <tutti/core/error.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::examples {

/// A data file that is missing, truncated or not what its name says. The message is one line that
/// names the file.
class DataError : public Error {
 public:
  using Error::Error;
};

struct Dataset {
  std::int64_t count = 0, channels = 0, height = 0, width = 0, classes = 0;
  std::vector<std::uint8_t> images = {};         ///< count x height x width x channels
  std::vector<std::uint8_t> labels = {};         ///< below `classes`
  std::vector<float> mean = {}, deviation = {};  ///< per channel, of pixels scaled to [0, 1]
  int crop_padding = 0;  ///< training images are shifted by up to this many pixels

  std::int64_t image_size() const { return height * width * channels; }
};

struct Datasets {
  Dataset train, test;
};

/// "fashion-mnist", "mnist", "cifar10" and "synthetic".
const std::vector<std::string>& dataset_names();
/// Where a dataset is looked for unless told otherwise; empty for "synthetic".
std::string default_folder(const std::string& name);
/// DataError where a file is missing, truncated or corrupt; ValueError for an unknown name.
Datasets load_datasets(const std::string& name, const std::string& folder);

/// The rank's part where every rank gets one: of n samples those from n rank / ranks to n (rank +
/// 1) / ranks.
Dataset shard(const Dataset& data, int rank, int ranks);

/// The MNIST family: IDX files, gzipped or not (http://yann.lecun.com/exdb/mnist/).
Dataset load_idx(const std::string& folder, const std::string& prefix);
/// CIFAR-10 in its binary version (https://www.cs.toronto.edu/~kriz/cifar.html).
Dataset load_cifar10(const std::string& folder, const std::vector<std::string>& files);
/// Made up: every class is a smooth pattern of its own under noise. The same for the same
/// arguments.
Dataset make_synthetic(std::int64_t count, std::int64_t channels, std::int64_t size,
                       std::uint64_t seed);

}  // namespace tutti::examples
