// StatisticsRun, and the functions that set the running statistics of all layers of a model:
// recompute_statistics() by such runs, pool_statistics() by those of all ranks.
#include "statistics_run.h"

#include "../../autograd/functions.h"
#include "../../autograd/grad_mode.h"
#include "../../core/create.h"
#include "../../distributed/backend.h"
#include "../../distributed/functional.h"
#include "call.h"
#include "pool_statistics.h"
#include "recompute_statistics.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

namespace tutti::nn {

StatisticsRun::StatisticsRun(std::string path, BatchNorm& layer)
    : path_(std::move(path)), layer_(layer), was_training_(layer.is_training()) {
  const Device device = layer.running_mean.device();
  const Shape channels = layer.running_mean.shape();
  layer.pooled_statistics_ = {.mean = zeros(channels, {float64, device}),
                              .var = ones(channels, {float64, device}),
                              .batches = zeros({}, {int64, device}),
                              .elements = zeros({}, {float64, device})};
  layer.train();
}

StatisticsRun::~StatisticsRun() {
  layer_.history_->observe = {};
  layer_.pooled_statistics_ = {};
  layer_.train(was_training_);
}

void StatisticsRun::observe(std::function<void(const Tensor&, const Tensor&)> observe) {
  layer_.history_->observe = std::move(observe);
}

Tensor StatisticsRun::moments() const {
  const kernels::RunningStatistics& pooled = layer_.pooled_statistics_;
  const auto& shared = layer_.process_group();
  const double share = !shared || shared->rank() == 0 ? 1 : 0;
  const Tensor n = pooled.elements * share;
  const Tensor deviations = pooled.var * relu(pooled.elements - 1) * share;
  return cat({n.reshape({1}), pooled.mean, deviations});
}

Tensor merged_moments(const Tensor& moments) {
  const std::int64_t c = moments.size(1) / 2;
  const Tensor counts = moments.slice(1, 0, 1), means = moments.slice(1, 1, 1 + c),
               deviations = moments.slice(1, 1 + c, 1 + 2 * c);
  const Tensor n = sum(counts).reshape({1});
  const Tensor mean = sum(means * counts, {0}) * (1 / clamp(n, 1e-300, {}));
  return cat({n, mean, sum(deviations + square(means - mean) * counts, {0})});
}

bool StatisticsRun::finish(const Tensor& moments) {
  const std::int64_t c = channels();
  const Tensor merged = merged_moments(moments);
  const double n = merged.slice(0, 0, 1).item<double>();
  if (!(n > 0)) return false;
  layer_.running_mean.copy_(merged.slice(0, 1, 1 + c));
  if (n > 1) layer_.running_var.copy_(merged.slice(0, 1 + c, 1 + 2 * c) * (1 / (n - 1)));
  return true;
}

namespace {

void check_shared_ranks(const char* function, const std::string& path, const BatchNorm& layer,
                        const ProcessGroup& group) {
  const auto& shared = layer.process_group();
  if (!shared || shared->size() == 1) return;
  const std::vector<int>& all = group.implementation()->info().world_ranks;
  for (const int rank : shared->implementation()->info().world_ranks)
    if (std::find(all.begin(), all.end(), rank) == all.end())
      fail<ValueError>(
          "{}: SyncBatchNorm '{}' shares its statistics with rank {} of the "
          "world, which is not in the group '{}' that was given; give a group of all its ranks",
          function, path, rank, group.name());
}

}  // namespace

std::vector<std::pair<std::string, BatchNorm*>> tracking_layers(const char* function,
                                                                Module& module,
                                                                const ProcessGroup& group) {
  std::vector<std::pair<std::string, BatchNorm*>> layers;
  for (const auto& [path, below] : module.named_modules()) {
    auto* layer = dynamic_cast<BatchNorm*>(below);
    if (!layer || !layer->running_mean.defined() || layer->is_frozen()) continue;
    check_shared_ranks(function, path, *layer, group);
    layers.emplace_back(path, layer);
  }
  return layers;
}

std::vector<std::string> recompute_statistics(Module& module,
                                              const std::function<void()>& run_batches,
                                              const ProcessGroup& group) {
  const NoGrad no_grad;
  std::deque<StatisticsRun> runs;
  for (const auto& [path, layer] : tracking_layers("recompute_statistics", module, group))
    runs.emplace_back(path, *layer);
  run_batches();
  if (runs.empty()) return {};
  std::vector<Tensor> parts;
  for (const StatisticsRun& run : runs) parts.push_back(run.moments());
  const Tensor all = distributed::all_gather(cat(parts), group, {.name = "recompute_statistics"});

  std::vector<std::string> replaced;
  std::int64_t begin = 0;
  for (StatisticsRun& run : runs) {
    const std::int64_t end = begin + 1 + 2 * run.channels();
    if (run.finish(all.slice(1, begin, end))) replaced.push_back(run.path());
    begin = end;
  }
  return replaced;
}

// ---- pool_statistics()

namespace {

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
  auto layers = tracking_layers("pool_statistics", module, group);
  std::erase_if(layers, [&](const auto& each) {  // Their statistics are the same on every rank.
    const auto& shared = each.second->process_group();
    return shared && shared->size() == group.size();
  });
  if (group.size() == 1 || layers.empty()) return {};
  std::vector<Tensor> parts;
  for (const auto& [path, layer] : layers) parts.push_back(weighted_sums(*layer).to(Device::cpu()));
  const Tensor sums = cat(parts);
  const std::string name = fmt::format("pool_statistics of {} layers", layers.size());
  group.all_reduce(sums, distributed::ReduceOp::sum, {.name = name}).wait();

  std::vector<std::string> pooled;
  std::int64_t begin = 0;
  for (const auto& [path, layer] : layers) {
    const std::int64_t end = begin + 2 + 2 * layer->options().channels;
    if (set_statistics(*layer, sums.slice(0, begin, end), group.size())) pooled.push_back(path);
    begin = end;
  }
  return pooled;
}

}  // namespace tutti::nn
