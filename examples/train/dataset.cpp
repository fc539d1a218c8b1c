#include "dataset.h"

#include "same_data.h"

#include <tutti/core/create.h>
#include <tutti/core/excerpt.h>
#include <tutti/data/cifar.h>
#include <tutti/data/idx.h>
#include <tutti/data/transforms/crop.h>
#include <tutti/data/transforms/flip.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace tutti::examples {
namespace {

using data::Split;

// Checks that all images of a dataset in memory are square, and completes what follows from them.
TrainingData complete(TrainingData data, const std::string& folder) {
  const Shape shape = data.train->get(0).image.shape(), test = data.test->get(0).image.shape();
  if (shape[0] != shape[1] || !(shape == test))
    fail<DataError>(
        "the images in {} are {} and {} (height, width, channels), expected square "
        "ones of one size for training and test",
        folder, to_string(shape), to_string(test));
  data.image_size = shape[0];
  data.channels = shape[2];
  data.class_names = data.train->class_names();
  return data;
}

TrainingData load_mnist_family(const std::string& folder, std::vector<std::string> class_names) {
  const data::IdxOptions options{.classes = 10, .class_names = std::move(class_names)};
  return complete({.train = data::load_idx(folder, "train", options),
                   .test = data::load_idx(folder, "t10k", options),
                   .classes = options.classes},
                  folder);
}

TrainingData load_fashion_mnist(const std::string& folder) {
  TrainingData data =
      load_mnist_family(folder, {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal",
                                 "Shirt", "Sneaker", "Bag", "Ankle boot"});
  data.mean = {0.2860f};
  data.deviation = {0.3530f};
  data.train_transforms = {data::RandomHorizontalFlip()};
  return data;
}

TrainingData load_mnist(const std::string& folder) {
  TrainingData data = load_mnist_family(folder, {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"});
  data.mean = {0.1307f};
  data.deviation = {0.3081f};
  return data;
}

TrainingData load_cifar(const std::string& folder, bool is_cifar100) {
  TrainingData data;
  if (is_cifar100) {
    data = complete({.train = data::load_cifar100(folder, Split::train),
                     .test = data::load_cifar100(folder, Split::test),
                     .classes = 100},
                    folder);
    data.mean = {0.5071f, 0.4865f, 0.4409f};
    data.deviation = {0.2673f, 0.2564f, 0.2762f};
  } else {
    data = complete({.train = data::load_cifar10(folder, Split::train),
                     .test = data::load_cifar10(folder, Split::test),
                     .classes = 10},
                    folder);
    data.mean = {0.4914f, 0.4822f, 0.4465f};
    data.deviation = {0.2470f, 0.2435f, 0.2616f};
  }
  data.train_transforms = {data::RandomCrop({.size = data.image_size, .padding = 4}),
                           data::RandomHorizontalFlip()};
  return data;
}

// Returns what `folder` lacks of the classes of another one; empty where it has them all.
std::string describe_missing(const std::string& folder, const std::vector<std::string>& own,
                             const std::vector<std::string>& others) {
  std::vector<std::string> missing;  // both lists are sorted
  std::set_difference(others.begin(), others.end(), own.begin(), own.end(),
                      std::back_inserter(missing));
  if (missing.empty()) return {};
  return fmt::format("; {} lacks '{}'{}", folder, excerpt(missing[0]),
                     missing.size() == 1 ? "" : fmt::format(" and {} more", missing.size() - 1));
}

TrainingData load_folder(const TrainOptions& options) {
  const std::int64_t size = options.image_size, resize_size = size * 256 / 224;
  data::ImageFolder::Options how{.broken_files = options.broken_files};
  const std::string train_path = options.data + "/train", test_path = options.data + "/val";
  const auto train = std::make_shared<data::ImageFolder>(train_path, how);
  how.decode.min_size = resize_size;  // a random part of a training image may be enlarged instead
  const auto test = std::make_shared<data::ImageFolder>(test_path, how);
  const std::vector<std::string> classes = train->class_names(), others = test->class_names();
  if (classes != others)
    fail<DataError>("{} and {} have different classes{}{}", train_path, test_path,
                    describe_missing(test_path, others, classes),
                    describe_missing(train_path, classes, others));
  if (classes.size() < 2)
    fail<DataError>("{} has one class only, '{}'; expected at least two folders", train_path,
                    excerpt(classes[0]));
  return {
      .train = train,
      .test = test,
      .channels = 3,
      .classes = static_cast<std::int64_t>(classes.size()),
      .image_size = size,
      .resize_size = resize_size,
      .class_names = classes,
      .mean = {0.485f, 0.456f, 0.406f},  // of ImageNet
      .deviation = {0.229f, 0.224f, 0.225f},
      .train_transforms = {data::RandomResizedCrop({.size = size}), data::RandomHorizontalFlip()},
      .test_transforms = {data::Resize(resize_size), data::CenterCrop(size)},
      .folders = {train, test}};
}

TrainingData with_fingerprints(TrainingData data) {
  data.images = describe_images(data);
  return data;
}

}  // namespace

const std::vector<std::string>& dataset_names() {
  static const std::vector<std::string> names{"fashion-mnist", "mnist",  "cifar10",
                                              "cifar100",      "folder", "synthetic"};
  return names;
}

std::string default_folder(const std::string& name) {
  if (name == "fashion-mnist")
    return "/usr/share/datasets/fashion-mnist";  // Debian's dataset-fashion-mnist
  if (name == "mnist") return "data/mnist";
  if (name == "cifar10") return "data/cifar-10-batches-bin";
  if (name == "cifar100") return "data/cifar-100-binary";
  return "";
}

TrainingData load_training_data(const TrainOptions& options) {
  if (options.dataset == "synthetic") return make_synthetic();
  if (options.dataset == "folder") return with_fingerprints(load_folder(options));
  try {
    if (options.dataset == "fashion-mnist")
      return with_fingerprints(load_fashion_mnist(options.data));
    if (options.dataset == "mnist") return with_fingerprints(load_mnist(options.data));
    if (options.dataset == "cifar10") return with_fingerprints(load_cifar(options.data, false));
    if (options.dataset == "cifar100") return with_fingerprints(load_cifar(options.data, true));
  } catch (const DataError& error) {
    fail<DataError>("{} (--data gives the folder of {})", error.what(), options.dataset);
  }
  fail<ValueError>("unknown dataset '{}'", options.dataset);
}

TrainingData make_synthetic(const SyntheticOptions& options) {
  const auto images = [&](std::int64_t count, std::uint64_t seed) {
    return std::make_shared<data::SyntheticDataset>(
        data::SyntheticDataset::Options{.count = count,
                                        .height = options.size,
                                        .width = options.size,
                                        .channels = options.channels,
                                        .seed = seed});
  };
  const auto channels = static_cast<std::size_t>(options.channels);
  return with_fingerprints({.train = images(options.train, 2 * options.seed),
                            .test = images(options.test, 2 * options.seed + 1),
                            .channels = options.channels,
                            .classes = 10,
                            .image_size = options.size,
                            .mean = std::vector<float>(channels, 0.5f),
                            .deviation = std::vector<float>(channels, 0.25f),
                            .train_transforms = {data::RandomHorizontalFlip()}});
}

TrainingData shard(TrainingData data, int rank, int ranks) {
  const std::int64_t size = data.train->size(), begin = size * rank / ranks,
                     end = size * (rank + 1) / ranks;
  std::vector<std::int64_t> own(static_cast<std::size_t>(end - begin));
  std::iota(own.begin(), own.end(), begin);
  data.train = std::make_shared<data::Subset>(std::move(data.train), std::move(own));
  return data;
}

std::vector<data::ImageFolder::BrokenFile> replaced_files(const TrainingData& data,
                                                          const ProcessGroup& group) {
  std::vector<data::ImageFolder::BrokenFile> all;
  for (const auto& folder : data.folders) {
    const Tensor broken = zeros({folder->size()}, {.dtype = uint8});
    for (const auto& file : folder->broken_files()) broken.data<std::uint8_t>()[file.index] = 1;
    group.all_reduce(broken, distributed::ReduceOp::max, {.name = "broken files"}).wait();
    for (std::int64_t i = 0; group.rank() == 0 && i < folder->size(); ++i)
      if (broken.data<std::uint8_t>()[i] == 1) folder->get(i);  // notes the reason here, too
    for (auto& file : folder->broken_files()) all.push_back(std::move(file));
  }
  return all;
}

}  // namespace tutti::examples
