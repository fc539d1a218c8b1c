#include "training_data.h"

#include "network.h"
#include "trainer.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/excerpt.h>
#include <tutti/core/hash.h>
#include <tutti/core/trace.h>
#include <tutti/data/cifar.h>
#include <tutti/data/idx.h>
#include <tutti/data/segmentation_folder.h>
#include <tutti/data/transforms/crop.h>
#include <tutti/data/transforms/flip.h>
#include <tutti/data/transforms/masked.h>
#include <tutti/data/transforms/mixup.h>
#include <tutti/data/transforms/normalize.h>
#include <tutti/distributed/backend.h>
#include <tutti/distributed/broadcast_text.h>
#include <tutti/nn/batch_norm/layer.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>
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

// Returns what `folder` lacks of the classes of another one; empty where it has them all.
std::string describe_missing(const std::string& folder, std::vector<std::string> own,
                             std::vector<std::string> others) {
  std::vector<std::string> missing;
  std::ranges::sort(own);
  std::ranges::sort(others);
  std::set_difference(others.begin(), others.end(), own.begin(), own.end(),
                      std::back_inserter(missing));
  if (missing.empty()) return {};
  return fmt::format("; {} lacks '{}'{}", folder, excerpt(missing[0]),
                     missing.size() == 1 ? "" : fmt::format(" and {} more", missing.size() - 1));
}

void check_classes(const std::string& train_path, const std::vector<std::string>& classes,
                   const std::string& test_path, const std::vector<std::string>& others) {
  if (classes != others)
    fail<DataError>("{} and {} have different classes{}{}", train_path, test_path,
                    describe_missing(test_path, others, classes),
                    describe_missing(train_path, classes, others));
  if (classes.size() < 2)
    fail<DataError>("{} has one class only, '{}'; expected at least two", train_path,
                    excerpt(classes[0]));
}

const std::vector<float> imagenet_mean{0.485f, 0.456f, 0.406f},
    imagenet_deviation{0.229f, 0.224f, 0.225f};

TrainingData load_segmentation_folder(const TrainOptions& o) {
  const std::string train_path = o.data + "/train", test_path = o.data + "/val";
  const auto train = std::make_shared<data::SegmentationFolder>(train_path);
  const auto test = std::make_shared<data::SegmentationFolder>(test_path);
  const SegmentationOptions& s = o.segmentation;
  check_classes(train_path, train->class_names(), test_path, test->class_names());
  return {.train = train,
          .test = test,
          .channels = 3,
          .classes = static_cast<std::int64_t>(train->class_names().size()),
          .image_size = s.crop,
          .class_names = train->class_names(),
          .mean = imagenet_mean,
          .deviation = imagenet_deviation,
          .train_transforms = {data::RandomMaskedScale(s.min_scale, s.max_scale),
                               data::RandomMaskedCrop(s.crop), data::RandomHorizontalFlip()},
          .are_files = true};
}

TrainingData load_folder(const TrainOptions& options) {
  const std::int64_t size = options.image_size, resize_size = size * 256 / 224;
  data::ImageFolder::Options how{.broken_files = options.broken_files};
  const std::string train_path = options.data + "/train", test_path = options.data + "/val";
  const auto train = std::make_shared<data::ImageFolder>(train_path, how);
  how.decode.min_size = resize_size;  // a random part of a training image may be enlarged instead
  const auto test = std::make_shared<data::ImageFolder>(test_path, how);
  const std::vector<std::string> classes = train->class_names();
  check_classes(train_path, classes, test_path, test->class_names());
  return {
      .train = train,
      .test = test,
      .channels = 3,
      .classes = static_cast<std::int64_t>(classes.size()),
      .image_size = size,
      .resize_size = resize_size,
      .class_names = classes,
      .mean = imagenet_mean,
      .deviation = imagenet_deviation,
      .train_transforms = {data::RandomResizedCrop({.size = size}), data::RandomHorizontalFlip()},
      .test_transforms = {data::Resize(resize_size), data::CenterCrop(size)},
      .are_files = true,
      .folders = {train, test}};
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

std::string check_files(const TrainingData& data, int threads) {
  std::string text;
  for (const auto& folder : data.folders) {
    std::atomic<std::int64_t> next = 0;
    std::mutex mutex;
    std::map<std::int64_t, std::string> broken;
    const auto decode = [&] {
      for (std::int64_t i = next++; i < folder->size(); i = next++) try {
          data::read_image(folder->describe(i));
        } catch (const Error& error) {
          const std::lock_guard lock(mutex);
          broken.emplace(i, error.what());
        }
    };
    std::vector<std::jthread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(decode);
    decode();
    others.clear();  // joins them
    text += fmt::format("{} of {} pictures cannot be decoded{}\n", broken.size(), folder->size(),
                        broken.empty() ? "" : "; --broken-files replaced takes the next one:");
    for (const auto& [index, reason] : broken) text += "  " + reason + "\n";
  }
  return text;
}

// ---- model card

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

// ---- same data

namespace {

// Adds the paths of a folder's files, without the beginning that all have in common: the folder may
// lie elsewhere on another host. The files are sorted, so that the first and the last tell it.
void add_paths(Hash64& hash, const data::Dataset& folder) {
  const std::string first = folder.describe(0), last = folder.describe(folder.size() - 1);
  const auto common = std::ranges::mismatch(first, last).in1 - first.begin();
  for (std::int64_t i = 0; i < folder.size(); ++i)
    hash.add(std::string_view(folder.describe(i)).substr(static_cast<std::size_t>(common)))
        .add(std::uint64_t{0});
}

void add_some_images(Hash64& hash, const data::Dataset& images) {
  constexpr std::int64_t most = 256;
  const std::int64_t size = images.size(), n = std::min(size, most);
  for (std::int64_t i = 0; i < n; ++i) {
    const data::Sample sample = images.get(i * size / n);
    const Tensor pixels = sample.image.contiguous();
    hash.add(static_cast<std::uint64_t>(sample.label))
        .add(pixels.raw(), static_cast<std::size_t>(pixels.numel()));
  }
}

std::string fingerprint(const data::Dataset& images, bool are_files) {
  Hash64 hash;
  if (are_files) add_paths(hash, images);
  else add_some_images(hash, images);
  return fmt::format("{:016x}", hash.value());
}

// Returns a hash of the names of classes and of the fingerprints.
std::uint64_t hash_of(const TrainingData& data) {
  Hash64 hash;
  for (const std::string& name : data.class_names) hash.add(name).add(std::uint64_t{name.size()});
  for (const auto& [key, text] : data.images) hash.add(text);
  return hash.value();
}

std::string describe(const std::int64_t* numbers) {
  return fmt::format("{} training and {} test images of {} classes", numbers[0], numbers[1],
                     numbers[2]);
}

}  // namespace

Metadata describe_images(const TrainingData& data) {
  return {{"train_images", std::to_string(data.train->size())},
          {"train_fingerprint", fingerprint(*data.train, data.are_files)},
          {"test_images", std::to_string(data.test->size())},
          {"test_fingerprint", fingerprint(*data.test, data.are_files)}};
}

Metadata describe_data(const TrainOptions& options, const TrainingData& data) {
  if (data.images.empty()) return {};
  Metadata all = model_card(options, data).to_metadata();
  all.insert(data.images.begin(), data.images.end());
  return all;
}

void expect_same_data(const TrainingData& data, const ProcessGroup& group) {
  constexpr std::int64_t count = 4;
  const Tensor mine = empty({count}, {.dtype = int64});
  const std::array numbers{data.train->size(), data.test->size(), data.classes,
                           static_cast<std::int64_t>(hash_of(data))};
  std::copy(numbers.begin(), numbers.end(), mine.data<std::int64_t>());
  const Tensor all = empty({group.size(), count}, {.dtype = int64});
  group.all_gather(mine, all, {.name = "data"}).wait();
  const std::int64_t* const first = all.data<std::int64_t>();
  for (int rank = 1; rank < group.size(); ++rank) {
    const std::int64_t* const other = first + rank * count;
    if (std::equal(first, first + count, other)) continue;
    const std::string found = describe(first), found_there = describe(other);
    if (found == found_there)
      fail<DataError>(
          "ranks 0 and {} both have {}, but other images, or other names of classes or files; give "
          "all hosts "
          "the same data",
          rank, found);
    fail<DataError>("rank 0 has {}, rank {} has {}; give all hosts the same data", found, rank,
                    found_there);
  }
}

namespace {

// Applies mixup or cutmix, either to half of the batches, as PyTorch's references/classification
// does. The choice follows from the seed and the number of the batch, so that it is the same on
// all ranks.
data::BatchTransform mixup_or_cutmix(const AugmentationOptions& o, std::uint64_t seed) {
  const data::MixUp mixup(o.mixup);
  const data::CutMix cutmix(o.cutmix);
  return [=](data::Batch& batch, std::span<Generator> randoms) {
    constexpr std::uint64_t coin = 1'000'003;  // far above the numbers of the transforms
    Generator random =
        data::RandomKey{.seed = seed, .epoch = batch.epoch, .sample = batch.number}.generator(coin);
    if (random.uniform() < 0.5) mixup(batch, randoms);
    else cutmix(batch, randoms);
  };
}

// Returns what mixes the images of a batch; nothing where they are not mixed.
std::vector<data::BatchTransform> mixing(const TrainOptions& o, std::int64_t classes) {
  if (!mixes_images(o)) return {};
  const AugmentationOptions& a = o.augmentation;
  std::vector<data::BatchTransform> transforms{data::SoftLabels({.classes = classes})};
  if (a.mixup > 0 && a.cutmix > 0) transforms.push_back(mixup_or_cutmix(a, o.seed));
  else if (a.mixup > 0) transforms.emplace_back(data::MixUp(a.mixup));
  else transforms.emplace_back(data::CutMix(a.cutmix));
  return transforms;
}

// Returns the options that all loaders share.
data::DataLoader::Options loader_options(const TrainOptions& o, const TrainingData& data,
                                         std::vector<data::Transform> transforms,
                                         std::vector<data::BatchTransform> batch_transforms,
                                         Device device) {
  data::Transform last =
      data::Normalize({.mean = data.mean, .deviation = data.deviation, .format = o.memory_format});
  if (o.task == Task::segmentation) {
    last = data::OnImage(std::move(last));
    batch_transforms.emplace_back([](data::Batch& batch, std::span<Generator>) {
      std::tie(batch.images, batch.labels) = data::split_masks(batch.images);
    });
  }
  transforms.push_back(std::move(last));
  if (const DType dtype = storage_dtype(o); dtype != float32)
    batch_transforms.emplace_back([dtype](data::Batch& batch, std::span<Generator>) {
      batch.images = batch.images.to(dtype);
      if (batch.soft_labels.defined()) batch.soft_labels = batch.soft_labels.to(dtype);
    });
  return {.transforms = std::move(transforms),
          .batch_transforms = std::move(batch_transforms),
          .workers = o.workers,
          .pin_memory_for = device};
}

// Returns the order of the training images, in global batches.
data::DistributedSampler::Options training_order(const TrainOptions& o, const ProcessGroup& group) {
  const auto remainder = o.drop_last ? data::Remainder::drop : data::Remainder::keep;
  if (o.sharded)  // the loader of a shard knows of no other rank
    return {.batch_size = own_batch_size(o, group.size()),
            .seed = o.seed + static_cast<std::uint64_t>(group.rank()),
            .remainder = remainder};
  return {.batch_size = o.batch_size,
          .seed = o.seed,
          .rank = group.rank(),
          .ranks = group.size(),
          .remainder = remainder};
}

// Returns the size of the global batch that is in memory at a time.
std::int64_t micro_batch_size(const TrainOptions& o) {
  return (o.batch_size + o.accumulate - 1) / o.accumulate;
}

}  // namespace

DType storage_dtype(const TrainOptions& o) { return o.precision == float64 ? float64 : float32; }

TrainOptions statistics_options(TrainOptions o) {
  constexpr std::int64_t examined = 50;
  o.max_steps = o.recompute_statistics > 0 ? o.recompute_statistics : o.bn_report ? examined : 0;
  o.batch_size = micro_batch_size(o);
  o.accumulate = 1;
  o.uneven = distributed::Uneven::stop;
  return o;
}

ProcessGroup statistics_group(const TrainOptions& o, const ProcessGroup& group) {
  if (o.sync_bn_scope == "world") return group;
  if (o.sync_bn_scope == "host") return group.split_by_host();
  return group.split_by_size(std::stoi(o.sync_bn_scope));
}

std::int64_t own_batch_size(const TrainOptions& o, int ranks) {
  return std::max<std::int64_t>(o.batch_size / ranks, 1);
}

bool mixes_images(const TrainOptions& o) {
  return o.augmentation.mixup > 0 || o.augmentation.cutmix > 0;
}

data::DataLoader::Options train_loader_options(const TrainOptions& o, const TrainingData& data,
                                               const ProcessGroup& group, Device device) {
  data::DataLoader::Options options =
      loader_options(o, data, data.train_transforms, mixing(o, data.classes), device);
  options.sampler = training_order(o, group);
  return options;
}

data::DataLoader::Options statistics_loader_options(const TrainOptions& o, const TrainingData& data,
                                                    const ProcessGroup& group, Device device) {
  data::DataLoader::Options options = loader_options(o, data, data.train_transforms, {}, device);
  options.sampler = training_order(statistics_options(o), group);
  return options;
}

data::DataLoader::Options test_loader_options(const TrainOptions& o, const TrainingData& data,
                                              const ProcessGroup& group, Device device) {
  data::DataLoader::Options options = loader_options(o, data, data.test_transforms, {}, device);
  // Small images are tested in larger batches, which is faster. Batches of large ones need as much
  // memory as in training.
  constexpr std::int64_t small_side = 64;
  const std::int64_t least = data.image_size <= small_side ? 250 : 1;
  // Pictures of different sizes come one by one.
  options.sampler = {.batch_size = o.task == Task::segmentation
                                       ? group.size()
                                       : std::max(micro_batch_size(o), least),
                     .shuffle = false,
                     .rank = group.rank(),
                     .ranks = group.size()};
  return options;
}

// ---- training batches

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
  if (device_.is_cuda()) copy_to_device(batch);
  if (!options_.sharded) return batch;  // every rank knows the size of the global batch
  if (!join_.step(batch.global_size)) fail<Error>("no rank has images for the next step");
  batch.global_size = join_.samples();
  return batch;
}

// Copies a batch on a stream of its own, beside the steps that the device has still to compute. Two
// batches take turns, so that the copy waits for the step before the last one only.
void TrainingBatches::copy_to_device(data::Batch& batch) {
  const cuda::Stream& steps = cuda::current_stream(device_.index());
  if (!copies_) copies_ = cuda::Stream::create(device_.index());
  on_device_[0].used.record(steps);
  std::swap(on_device_[0], on_device_[1]);
  data::Batch& there = on_device_[0].batch;
  copies_->wait(on_device_[0].used);
  const auto copy = [&](Tensor& from, Tensor& to) {
    if (!from.defined()) return;
    if (to.defined() && to.shape() == from.shape()) {
      const cuda::StreamScope scope(*copies_);
      to.copy_(from);
    } else {
      to = from.to(device_);
    }
    from = to;
  };
  copy(batch.images, there.images);
  copy(batch.labels, there.labels);
  copy(batch.soft_labels, there.soft_labels);
  steps.wait(*copies_);
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

// ---- batch parts

namespace {

using Scopes = std::vector<std::int64_t>;

// Returns the size of part `index` of `count` parts of a batch, as samplers and steps divide it.
std::int64_t part_size(std::int64_t images, std::int64_t index, std::int64_t count) {
  return images * (index + 1) / count - images * index / count;
}

// Returns the size of a batch that is divided at once: the global batch, or that of a shard.
std::int64_t undivided_batch(const TrainOptions& o, std::int64_t ranks) {
  return o.sharded ? own_batch_size(o, static_cast<int>(ranks)) : o.batch_size;
}

// Returns the images of a rank in a step, which is counted from 0.
std::int64_t images_of_rank(const TrainOptions& o, std::int64_t rank, std::int64_t ranks,
                            std::int64_t images, std::int64_t step) {
  const std::int64_t all = o.sharded ? part_size(images, rank, ranks) : images,
                     batch = undivided_batch(o, ranks),
                     here = std::clamp<std::int64_t>(all - step * batch, 0, batch);
  if (o.drop_last && here < batch) return 0;
  return o.sharded ? here : part_size(here, rank, ranks);
}

bool has_a_lone_image(const TrainOptions& o, const Scopes& scopes, std::int64_t images,
                      std::int64_t step) {
  const auto ranks = static_cast<std::int64_t>(scopes.size());
  std::vector<std::int64_t> own;
  for (std::int64_t r = 0; r < ranks; ++r) own.push_back(images_of_rank(o, r, ranks, images, step));
  const std::int64_t count = micro_batches(o, ranks, std::reduce(own.begin(), own.end()));
  for (std::int64_t i = 0; i < count; ++i) {
    std::map<std::int64_t, std::int64_t> together;
    for (std::size_t r = 0; r < own.size(); ++r) together[scopes[r]] += part_size(own[r], i, count);
    for (const auto& [scope, images_together] : together)
      if (images_together == 1) return true;
  }
  return false;
}

// Returns the scope of every rank: its first rank.
Scopes gather_scopes(const TrainOptions& o, const ProcessGroup& group) {
  std::int64_t mine = group.rank();
  if (o.sync_bn) mine = statistics_group(o, group).implementation()->info().world_ranks.front();
  Scopes scopes(static_cast<std::size_t>(group.size()));
  group
      .all_gather(from_blob(&mine, {}, int64), from_blob(scopes.data(), {group.size()}, int64),
                  {.name = "scopes of statistics"})
      .wait();
  return scopes;
}

// Returns the path of a batch normalisation that is trained and sees maps of one position; empty
// if there is none.
std::string layer_with_one_position(const TrainOptions& o, const TrainingData& data) {
  const NoGrad no_grad;
  const auto net = make_network(o, data);
  freeze_layers(o, *net);
  std::string found;
  for (const auto& [path, module] : net->named_modules())
    if (auto* layer = dynamic_cast<nn::BatchNorm*>(module); layer && !layer->is_frozen())
      layer->add_forward_hook(
          [&found, name = path](nn::Layer&, const Tensor& x, const Tensor&) -> Tensor {
            if (found.empty() && x.numel() == x.size(0) * x.size(1)) found = name;
            return {};
          });
  net->eval();
  net->forward(zeros({1, data.channels, data.image_size, data.image_size}));
  return found;
}

std::string advice(TrainOptions o, const Scopes& scopes, std::int64_t images) {
  o.drop_last = true;
  const auto ranks = static_cast<std::int64_t>(scopes.size());
  return steps_per_epoch(o, ranks, images) > 0 && step_with_a_lone_image(o, scopes, images) == 0
             ? "give --drop-last, which leaves out the last batch of an epoch if it is not full, "
               "or "
               "another --batch-size"
             : "give a greater --batch-size, a smaller --accumulate or the statistics of more "
               "ranks (--sync-bn, --sync-bn-scope)";
}

}  // namespace

std::int64_t micro_batches(const TrainOptions& o, std::int64_t ranks, std::int64_t global_size) {
  const std::int64_t images_of_a_rank = (global_size + ranks - 1) / ranks,
                     wanted = o.sharded
                                  ? o.accumulate
                                  : (global_size * o.accumulate + o.batch_size - 1) / o.batch_size;
  return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(images_of_a_rank, 1));
}

std::int64_t steps_per_epoch(const TrainOptions& o, std::int64_t ranks, std::int64_t images) {
  const std::int64_t batch = undivided_batch(o, ranks),
                     which = o.uneven == distributed::Uneven::stop ? 0 : ranks - 1,
                     own = o.sharded ? part_size(images, which, ranks) : images;
  return o.drop_last ? own / batch : (own + batch - 1) / batch;
}

// All steps are alike but the last two: the shards of ranks differ by one image.
std::int64_t step_with_a_lone_image(const TrainOptions& o, const Scopes& scopes,
                                    std::int64_t images) {
  std::int64_t steps = steps_per_epoch(o, static_cast<std::int64_t>(scopes.size()), images);
  if (o.max_steps > 0) steps = std::min(steps, o.max_steps);
  for (const std::int64_t step : {std::int64_t{0}, steps - 2, steps - 1})
    if (step >= 0 && step < steps && has_a_lone_image(o, scopes, images, step)) return step + 1;
  return 0;
}

// Every rank calls it with the same text.
[[noreturn]] static void refuse_on_all_ranks(const std::string& text) {
  throw ErrorOnAllRanks(text, 0, exit_bad_input);
}

void check_batches(const TrainOptions& options, const TrainingData& data,
                   const ProcessGroup& group) {
  const std::int64_t images = data.train->size();
  TrainOptions fewest = options;
  fewest.uneven = distributed::Uneven::stop;
  if (options.drop_last && images > 0 && steps_per_epoch(fewest, group.size(), images) == 0)
    refuse_on_all_ranks(
        fmt::format("--drop-last leaves no batch of {} training images; give a "
                    "--batch-size of less than {}",
                    images, options.batch_size));
  const Scopes scopes = gather_scopes(options, group);
  const TrainOptions examined = statistics_options(options);
  for (const TrainOptions& o : {options, examined.max_steps > 0 ? examined : options}) {
    const std::int64_t step = step_with_a_lone_image(o, scopes, images);
    if (step == 0) continue;
    const std::string layer = distributed::broadcast_text(
        group, group.rank() == 0 ? layer_with_one_position(options, data) : "", "smallest maps");
    if (layer.empty()) return;
    refuse_on_all_ranks(fmt::format(
        "batch {} of an epoch would normalise 1 image alone, and layer '{}', whose maps have 1 x 1 "
        "pixels, needs more than 1 value per channel; {}",
        step, layer, advice(o, scopes, images)));
  }
}

}  // namespace tutti::examples
