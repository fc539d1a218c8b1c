#include "dataset.h"

#include <tutti/core/random.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>

namespace tutti::examples {

const std::vector<std::string>& dataset_names() {
  static const std::vector<std::string> names{"fashion-mnist", "mnist", "cifar10", "synthetic"};
  return names;
}

std::string default_folder(const std::string& name) {
  if (name == "fashion-mnist")
    return "/usr/share/datasets/fashion-mnist";  // Debian's dataset-fashion-mnist
  if (name == "mnist") return "data/mnist";
  if (name == "cifar10") return "data/cifar-10-batches-bin";
  return "";
}

Datasets load_datasets(const std::string& name, const std::string& folder) {
  if (name == "fashion-mnist" || name == "mnist") {
    Datasets data{load_idx(folder, "train"), load_idx(folder, "t10k")};
    for (Dataset* d : {&data.train, &data.test}) {
      d->mean = {name == "mnist" ? 0.1307f : 0.2860f};
      d->deviation = {name == "mnist" ? 0.3081f : 0.3530f};
    }
    return data;
  }
  if (name == "cifar10")
    return {load_cifar10(folder, {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                  "data_batch_4.bin", "data_batch_5.bin"}),
            load_cifar10(folder, {"test_batch.bin"})};
  if (name == "synthetic") return {make_synthetic(2048, 3, 32, 1), make_synthetic(512, 3, 32, 2)};
  fail<ValueError>("unknown dataset '{}'", name);
}

Dataset shard(const Dataset& data, int rank, int ranks) {
  const std::int64_t begin = data.count * rank / ranks, end = data.count * (rank + 1) / ranks;
  Dataset part = data;
  part.count = end - begin;
  part.images.assign(data.images.begin() + begin * data.image_size(),
                     data.images.begin() + end * data.image_size());
  part.labels.assign(data.labels.begin() + begin, data.labels.begin() + end);
  return part;
}

std::int64_t data_file_size(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    fail<DataError>("data file {} is missing; give its folder with --data", path);
  if (!std::filesystem::is_regular_file(status))
    fail<DataError>("data file {} is not a regular file", path);
  const auto size = std::filesystem::file_size(path, error);
  if (error) fail<DataError>("data file {} cannot be read: {}", path, error.message());
  return static_cast<std::int64_t>(size);
}

Dataset make_synthetic(std::int64_t count, std::int64_t channels, std::int64_t size,
                       std::uint64_t seed) {
  Dataset data{.count = count, .channels = channels, .height = size, .width = size, .classes = 10};
  data.mean.assign(static_cast<std::size_t>(channels), 0.5f);
  data.deviation.assign(static_cast<std::size_t>(channels), 0.25f);
  data.images.reserve(static_cast<std::size_t>(count * data.image_size()));
  Generator generator(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t label = generator.below(data.classes);
    data.labels.push_back(static_cast<std::uint8_t>(label));
    // The class decides direction and wavelength of a wave; its phase differs by channel and image.
    const double angle = std::numbers::pi * static_cast<double>(label) / 10,
                 shift = generator.uniform();
    for (std::int64_t y = 0; y < size; ++y)
      for (std::int64_t x = 0; x < size; ++x)
        for (std::int64_t c = 0; c < channels; ++c) {
          const double along = std::cos(angle) * static_cast<double>(x) +
                               std::sin(angle) * static_cast<double>(y);
          const double frequency = 0.4 + 0.05 * static_cast<double>(label);
          const double wave = std::sin(along * frequency + shift + static_cast<double>(c));
          const double value = 128 + 50 * wave + 60 * (generator.uniform() - 0.5);
          data.images.push_back(static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0)));
        }
  }
  return data;
}

}  // namespace tutti::examples
