#include "loaders.h"

#include <tutti/data/transforms/mixup.h>
#include <tutti/data/transforms/normalize.h>

#include <algorithm>

namespace tutti::examples {
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
  transforms.push_back(
      data::Normalize({.mean = data.mean, .deviation = data.deviation, .format = o.memory_format}));
  if (const DType dtype = storage_dtype(o); dtype != float32)
    batch_transforms.emplace_back([dtype](data::Batch& batch, std::span<Generator>) {
      batch.images = batch.images.to(dtype);
      if (batch.soft_labels.defined()) batch.soft_labels = batch.soft_labels.to(dtype);
    });
  return {.transforms = std::move(transforms),
          .batch_transforms = std::move(batch_transforms),
          .workers = o.workers,
          .pin_memory = device.is_cuda()};
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
  options.sampler = {.batch_size = std::max(micro_batch_size(o), least),
                     .shuffle = false,
                     .rank = group.rank(),
                     .ranks = group.size()};
  return options;
}

}  // namespace tutti::examples
