#include "training_batches.h"

#include "network.h"
#include "trainer.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/trace.h>
#include <tutti/data/transforms/masked.h>
#include <tutti/data/transforms/mixup.h>
#include <tutti/data/transforms/normalize.h>
#include <tutti/distributed/backend.h>
#include <tutti/distributed/broadcast_text.h>
#include <tutti/nn/batch_norm/layer.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
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
  return to_vector<std::int64_t>(
      gather_from_ranks(from_blob(&mine, {}, int64), group, "scopes of statistics"));
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

RunLength run_length(const TrainOptions& o, std::int64_t steps_per_epoch) {
  const std::int64_t steps = o.epochs * steps_per_epoch;
  return {.epochs = o.epochs,
          .steps_per_epoch = steps_per_epoch,
          .steps = o.max_steps > 0 ? std::min(o.max_steps, steps) : steps};
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
