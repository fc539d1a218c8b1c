#include "training_data.h"

#include <tutti/core/excerpt.h>
#include <tutti/data/cifar.h>
#include <tutti/data/idx.h>
#include <tutti/data/segmentation_folder.h>
#include <tutti/data/transforms/crop.h>
#include <tutti/data/transforms/flip.h>
#include <tutti/data/transforms/resize.h>

#include <algorithm>
#include <array>
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

// Completes the data of CIFAR-10 or CIFAR-100 with the transforms of both.
TrainingData complete_cifar(TrainingData data, const std::string& folder) {
  data = complete(std::move(data), folder);
  data.train_transforms = {data::RandomCrop({.size = data.image_size, .padding = 4}),
                           data::RandomHorizontalFlip()};
  return data;
}

TrainingData load_cifar10(const std::string& folder) {
  return complete_cifar({.train = data::load_cifar10(folder, Split::train),
                         .test = data::load_cifar10(folder, Split::test),
                         .classes = 10,
                         .mean = {0.4914f, 0.4822f, 0.4465f},
                         .deviation = {0.2470f, 0.2435f, 0.2616f}},
                        folder);
}

TrainingData load_cifar100(const std::string& folder) {
  return complete_cifar({.train = data::load_cifar100(folder, Split::train),
                         .test = data::load_cifar100(folder, Split::test),
                         .classes = 100,
                         .mean = {0.5071f, 0.4865f, 0.4409f},
                         .deviation = {0.2673f, 0.2564f, 0.2762f}},
                        folder);
}

// A dataset in files of one folder, and where it is looked for.
struct KnownDataset {
  const char *name, *folder;
  TrainingData (*load)(const std::string& folder);
};
constexpr std::array known_datasets{
    // Debian's dataset-fashion-mnist
    KnownDataset{"fashion-mnist", "/usr/share/datasets/fashion-mnist", load_fashion_mnist},
    KnownDataset{"mnist", "data/mnist", load_mnist},
    KnownDataset{"cifar10", "data/cifar-10-batches-bin", load_cifar10},
    KnownDataset{"cifar100", "data/cifar-100-binary", load_cifar100}};

const KnownDataset* find_dataset(const std::string& name) {
  const auto found = std::ranges::find(known_datasets, name, &KnownDataset::name);
  return found == known_datasets.end() ? nullptr : &*found;
}

// Throws unless both folders have the same classes, at least two.
void check_classes(const std::string& train_path, const std::vector<std::string>& classes,
                   const std::string& test_path, const std::vector<std::string>& others,
                   bool are_lines) {
  const auto [a, b] = std::ranges::mismatch(classes, others);
  const auto name = [](auto at, auto end) {
    return at == end ? "none" : fmt::format("'{}'", excerpt(*at));
  };
  const std::ptrdiff_t at = a - classes.begin();
  if (classes != others)
    fail<DataError>("{} and {} have different classes; class {}{} is {} and {}", train_path,
                    test_path, at,
                    are_lines ? fmt::format(" (line {} of classes.txt)", at + 1) : "",
                    name(a, classes.end()), name(b, others.end()));
  if (classes.size() < 2)
    fail<DataError>("{} has one class only, '{}'; expected at least two", train_path,
                    excerpt(classes[0]));
}

const std::vector<float> imagenet_mean{0.485f, 0.456f, 0.406f},
    imagenet_deviation{0.229f, 0.224f, 0.225f};

// Opens the folders of a dataset's training and test images.
template <class Folder>
TrainingData open_folders(const std::string& folder, const typename Folder::Options& of_training,
                          const typename Folder::Options& of_tests) {
  const std::string train_path = folder + "/train", test_path = folder + "/val";
  const auto train = std::make_shared<Folder>(train_path, of_training),
             test = std::make_shared<Folder>(test_path, of_tests);
  const std::vector<std::string> classes = train->class_names();
  check_classes(train_path, classes, test_path, test->class_names(),
                std::is_same_v<Folder, data::SegmentationFolder>);
  TrainingData data{.train = train,
                    .test = test,
                    .channels = 3,
                    .classes = static_cast<std::int64_t>(classes.size()),
                    .class_names = classes,
                    .mean = imagenet_mean,
                    .deviation = imagenet_deviation,
                    .are_files = true};
  if constexpr (std::is_same_v<Folder, data::ImageFolder>) data.folders = {train, test};
  else data.scenes = {train, test};
  return data;
}

TrainingData load_segmentation_folder(const TrainOptions& o) {
  const data::SegmentationFolder::Options how{.mask_orientation = o.segmentation.mask_orientation};
  TrainingData data = open_folders<data::SegmentationFolder>(o.data, how, how);
  data.image_size = o.segmentation.crop;
  data.train_transforms = {data::RandomScale(o.segmentation.min_scale, o.segmentation.max_scale),
                           data::RandomCrop({.size = o.segmentation.crop, .padding = 0}),
                           data::RandomHorizontalFlip()};
  return data;
}

TrainingData load_folder(const TrainOptions& o) {
  const std::int64_t size = o.image_size, resize_size = size * 256 / 224;
  // A random part of a training image may be enlarged; a test image is decoded large enough.
  TrainingData data =
      open_folders<data::ImageFolder>(o.data, {}, {.decode = {.min_size = resize_size}});
  data.image_size = size;
  data.resize_size = resize_size;
  data.train_transforms = {data::RandomResizedCrop({.size = size}), data::RandomHorizontalFlip()};
  data.test_transforms = {data::Resize(resize_size), data::CenterCrop(size)};
  return data;
}

TrainingData with_fingerprints(TrainingData data) {
  data.images = describe_images(data);
  return data;
}

}  // namespace

const std::vector<std::string>& dataset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const KnownDataset& known : known_datasets) all.emplace_back(known.name);
    all.insert(all.end(), {"folder", "synthetic"});
    return all;
  }();
  return names;
}

std::string default_folder(const std::string& name) {
  const KnownDataset* const known = find_dataset(name);
  return known ? known->folder : "";
}

TrainingData load_training_data(const TrainOptions& options) {
  if (options.task == Task::segmentation)
    return with_fingerprints(load_segmentation_folder(options));
  if (options.dataset == "synthetic") return make_synthetic();
  if (options.dataset == "folder") return with_fingerprints(load_folder(options));
  const KnownDataset* const known = find_dataset(options.dataset);
  if (!known) fail<ValueError>("unknown dataset '{}'", options.dataset);
  try {
    return with_fingerprints(known->load(options.data));
  } catch (const DataError& error) {
    fail<DataError>("{} (--data gives the folder of {})", error.what(), options.dataset);
  }
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

std::string advice_on_broken_files(const std::string& error) {
  return error.find("mask_orientation") != std::string::npos
             ? "; give --mask-orientation as-stored or as-shown"
             : "; --dry-run --check-files lists all";
}

nn::ModelCard model_card(const TrainOptions& options, const TrainingData& data) {
  nn::ModelCard card{.model = options.model,
                     .classes = data.classes,
                     .channels = data.channels,
                     .class_names = data.class_names,
                     .mean = {data.mean.begin(), data.mean.end()},
                     .std = {data.deviation.begin(), data.deviation.end()},
                     .resize_size = data.resize_size,
                     .input_size = data.image_size};
  try {
    card.to_metadata();
  } catch (const ValueError& error) {
    fail<DataError>("{}: the weights file cannot describe these images: {}", options.dataset,
                    error.what());
  }
  return card;
}

}  // namespace tutti::examples
