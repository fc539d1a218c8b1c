#include "training_batches.h"

#include <tutti/core/trace.h>
#include <tutti/data/transforms/mixup.h>
#include <tutti/data/transforms/normalize.h>

#include <algorithm>
#include <utility>

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
  const AugmentationOptions& a = o.augmentation;
  if (a.mixup == 0 && a.cutmix == 0) return {};
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
  transforms.emplace_back(data::Normalize(
      {.mean = data.mean, .deviation = data.deviation, .format = MemoryFormat::channels_last}));
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
  return o;
}

ProcessGroup statistics_group(const TrainOptions& o, const ProcessGroup& group) {
  if (o.sync_bn_scope == "world") return group;
  if (o.sync_bn_scope == "host") return group.split_by_host();
  return group.split_by_size(std::stoi(o.sync_bn_scope));
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
  options.sampler.seed += 1'000'003;  // other batches than the ones that training sees next
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
    : device_(device), loader_(data.train, train_loader_options(options, data, group, device)) {}

data::Batch TrainingBatches::load(data::DataLoader::State position) {
  const trace::Span span("load");
  if (loader_.state() != position) loader_.set_state(position);
  data::Batch batch = loader_.next().value();
  if (device_.is_cuda()) copy_to_device(batch);
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

// ---- sizes

std::int64_t micro_batches(const TrainOptions& o, std::int64_t ranks, std::int64_t global_size) {
  const std::int64_t images_of_a_rank = (global_size + ranks - 1) / ranks,
                     wanted = (global_size * o.accumulate + o.batch_size - 1) / o.batch_size;
  return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(images_of_a_rank, 1));
}

std::int64_t steps_per_epoch(const TrainOptions& o, std::int64_t images) {
  return o.drop_last ? images / o.batch_size : (images + o.batch_size - 1) / o.batch_size;
}

RunLength run_length(const TrainOptions& o, std::int64_t steps_per_epoch) {
  const std::int64_t steps = o.epochs * steps_per_epoch;
  return {.epochs = o.epochs,
          .steps_per_epoch = steps_per_epoch,
          .steps = o.max_steps > 0 ? std::min(o.max_steps, steps) : steps};
}

}  // namespace tutti::examples
