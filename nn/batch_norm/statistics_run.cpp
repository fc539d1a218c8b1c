// StatisticsRun, and recompute_statistics(), which needs nothing else.
#include "statistics_run.h"

#include "../../autograd/functions.h"
#include "../../autograd/grad_mode.h"
#include "../../core/create.h"
#include "../../distributed/backend.h"
#include "arguments.h"
#include "recompute_statistics.h"

#include <algorithm>
#include <utility>

namespace tutti::nn {

StatisticsRun::StatisticsRun(std::string path, BatchNorm& layer)
    : path_(std::move(path)), layer_(&layer), was_training_(layer.is_training()) {
  const Device device = layer.running_mean.device();
  const Shape channels = layer.running_mean.shape();
  layer.pooled_statistics_ = {.mean = zeros(channels, {float64, device}),
                              .var = ones(channels, {float64, device}),
                              .batches = zeros({}, {int64, device}),
                              .elements = zeros({}, {float64, device})};
  layer.train();
}

StatisticsRun::~StatisticsRun() {
  if (!layer_) return;
  layer_->history_->observe = {};
  layer_->pooled_statistics_ = {};
  layer_->train(was_training_);
}

StatisticsRun::StatisticsRun(StatisticsRun&& other) noexcept
    : path_(std::move(other.path_)),
      layer_(std::exchange(other.layer_, nullptr)),
      was_training_(other.was_training_) {}

void StatisticsRun::observe(std::function<void(const Tensor&, const Tensor&)> observe) {
  layer_->history_->observe = std::move(observe);
}

Tensor StatisticsRun::moments() const {
  const kernels::RunningStatistics& pooled = layer_->pooled_statistics_;
  const auto& shared = layer_->process_group();
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
  layer_->running_mean.copy_(merged.slice(0, 1, 1 + c));
  if (n > 1) layer_->running_var.copy_(merged.slice(0, 1 + c, 1 + 2 * c) * (1 / (n - 1)));
  return true;
}

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

std::vector<StatisticsRun> start_statistics_runs(const char* function, Module& module,
                                                 const ProcessGroup& group) {
  std::vector<StatisticsRun> runs;
  for (const auto& [path, below] : module.named_modules()) {
    auto* layer = dynamic_cast<BatchNorm*>(below);
    if (!layer || !layer->running_mean.defined() || layer->is_frozen()) continue;
    check_shared_ranks(function, path, *layer, group);
    runs.emplace_back(path, *layer);
  }
  return runs;
}

std::vector<std::string> recompute_statistics(Module& module,
                                              const std::function<void()>& run_batches,
                                              const ProcessGroup& group) {
  const NoGrad no_grad;
  std::vector<StatisticsRun> runs = start_statistics_runs("recompute_statistics", module, group);
  run_batches();
  if (runs.empty()) return {};
  std::vector<Tensor> parts;
  for (const StatisticsRun& run : runs) parts.push_back(run.moments());
  const Tensor mine = cat(parts);
  const Tensor all = empty({group.size(), mine.numel()}, {float64, mine.device()});
  group.all_gather(mine, all, {.name = "recompute_statistics"}).wait();

  std::vector<std::string> replaced;
  std::int64_t begin = 0;
  for (StatisticsRun& run : runs) {
    const std::int64_t end = begin + 1 + 2 * run.channels();
    if (run.finish(all.slice(1, begin, end))) replaced.push_back(run.path());
    begin = end;
  }
  return replaced;
}

}  // namespace tutti::nn
