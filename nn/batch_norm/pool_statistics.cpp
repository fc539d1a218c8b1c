#include "pool_statistics.h"

#include "../../autograd/functions.h"
#include "../../autograd/grad_mode.h"
#include "../../core/create.h"
#include "statistics_run.h"

#include <cmath>

namespace tutti::nn {
namespace {

struct PooledLayer {
  std::string path;
  BatchNorm* layer;
};

// Returns the layers whose statistics may differ between the ranks of `group`.
std::vector<PooledLayer> layers_to_pool(Module& module, const ProcessGroup& group) {
  std::vector<PooledLayer> layers;
  for (const auto& [path, below] : module.named_modules()) {
    auto* layer = dynamic_cast<BatchNorm*>(below);
    if (!layer || !layer->running_mean.defined() || layer->is_frozen()) continue;
    check_shared_ranks("pool_statistics", path, *layer, group);
    const auto& shared = layer->process_group();
    if (!shared || shared->size() < group.size()) layers.push_back({path, layer});
  }
  return layers;
}

// Returns what the statistics of this rank weigh, float64 of shape (1).
Tensor weight_of(const BatchNorm& layer) {
  const auto& shared = layer.process_group();
  const double share = shared ? 1.0 / shared->size() : 1;
  if (layer.options().pooled) return layer.num_elements_tracked.reshape({1}) * share;
  const Tensor batches = layer.num_batches_tracked.to(float64).reshape({1});
  return layer.options().momentum ? batches - relu(batches - 1) : batches;  // the former: 0 or 1
}

// Returns batches and weight, and the weighted sums of mean and of mean square: (2 + 2C).
Tensor weighted_sums(const BatchNorm& layer) {
  const Tensor weight = weight_of(layer), mean = layer.running_mean.to(float64),
               mean_square = layer.running_var.to(float64) + square(mean);
  const Tensor batches = layer.num_batches_tracked.to(float64).reshape({1});
  return cat({batches, weight, mean * weight, mean_square * weight});
}

// Sets the statistics from the sums over `ranks` ranks, and the counts to those of the average
// rank. Returns whether any rank had some.
bool set_statistics(const BatchNorm& layer, const Tensor& sums, int ranks) {
  const std::int64_t c = layer.options().channels;
  const double batches = sums.data<double>()[0], weight = sums.data<double>()[1];
  if (weight == 0) return false;
  const Tensor mean = sums.slice(0, 2, 2 + c) * (1 / weight),
               mean_square = sums.slice(0, 2 + c, 2 + 2 * c) * (1 / weight);
  layer.running_mean.copy_(mean);
  layer.running_var.copy_(relu(mean_square - square(mean)));  // not below 0 by rounding
  layer.num_batches_tracked.fill_(std::ceil(batches / ranks));
  const auto& shared = layer.process_group();
  if (layer.options().pooled)
    layer.num_elements_tracked.fill_(weight / ranks * (shared ? shared->size() : 1));
  return true;
}

}  // namespace

std::vector<std::string> pool_statistics(Module& module, const ProcessGroup& group) {
  const NoGrad no_grad;
  const std::vector<PooledLayer> layers = layers_to_pool(module, group);
  if (group.size() == 1 || layers.empty()) return {};
  std::vector<Tensor> parts;
  for (const PooledLayer& each : layers)
    parts.push_back(weighted_sums(*each.layer).to(Device::cpu()));
  const Tensor sums = cat(parts);
  const std::string name = fmt::format("pool_statistics of {} layers", layers.size());
  group.all_reduce(sums, distributed::ReduceOp::sum, {.name = name}).wait();

  std::vector<std::string> pooled;
  std::int64_t begin = 0;
  for (const PooledLayer& each : layers) {
    const std::int64_t end = begin + 2 + 2 * each.layer->options().channels;
    if (set_statistics(*each.layer, sums.slice(0, begin, end), group.size()))
      pooled.push_back(each.path);
    begin = end;
  }
  return pooled;
}

}  // namespace tutti::nn
