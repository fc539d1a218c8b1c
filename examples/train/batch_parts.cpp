#include "batch_parts.h"

#include "frozen_layers.h"
#include "loaders.h"
#include "trainer.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/distributed/backend.h>
#include <tutti/distributed/broadcast_text.h>
#include <tutti/nn/batch_norm/layer.h>
#include <tutti/nn/resnet.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace tutti::examples {
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
  const auto net = nn::resnet(o.model, {.classes = data.classes, .channels = data.channels});
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

void check_batches(const TrainOptions& options, const TrainingData& data,
                   const ProcessGroup& group) {
  const std::int64_t images = data.train->size();
  TrainOptions fewest = options;
  fewest.uneven = distributed::Uneven::stop;
  if (options.drop_last && images > 0 && steps_per_epoch(fewest, group.size(), images) == 0)
    throw RefusedOnAllRanks(
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
    throw RefusedOnAllRanks(fmt::format(
        "batch {} of an epoch would normalise 1 image alone, and layer '{}', whose maps have 1 x 1 "
        "pixels, needs more than 1 value per channel; {}",
        step, layer, advice(o, scopes, images)));
  }
}

}  // namespace tutti::examples
