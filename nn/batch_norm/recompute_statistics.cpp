#include "recompute_statistics.h"

#include "../../autograd/functions.h"
#include "../../autograd/grad_mode.h"
#include "../../core/create.h"
#include "../../distributed/backend.h"

#include <algorithm>
#include <utility>

namespace tutti::nn {

/// Makes one layer pool the batches that it sees, in float64 beside its running statistics, until
/// this object is destroyed.
class StatisticsRun {
 public:
  StatisticsRun(std::string path, BatchNorm& layer)
      : path_(std::move(path)), layer_(&layer), was_training_(layer.is_training()) {
    const Device device = layer.running_mean.device();
    const Shape channels = layer.running_mean.shape();
    layer.population_ = {.mean = zeros(channels, {float64, device}),
                         .var = ones(channels, {float64, device}),
                         .batches = zeros({}, {int64, device}),
                         .elements = zeros({}, {float64, device})};
    layer.train();
  }
  ~StatisticsRun() {
    if (!layer_) return;
    layer_->population_ = {};
    layer_->train(was_training_);
  }
  StatisticsRun(StatisticsRun&& other) noexcept
      : path_(std::move(other.path_)),
        layer_(std::exchange(other.layer_, nullptr)),
        was_training_(other.was_training_) {}
  StatisticsRun& operator=(StatisticsRun&&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t channels() const { return layer_->population_.mean.numel(); }

  /// Returns (count, means, sums of squared deviations) of the values on this rank, float64,
  /// (1 + 2C). Ranks that share their statistics have pooled all of them already: only the first of
  /// these ranks counts.
  Tensor moments() const {
    const kernels::RunningStatistics& population = layer_->population_;
    const auto& shared = layer_->process_group();
    const double share = !shared || shared->rank() == 0 ? 1 : 0;
    const Tensor n = population.elements * share;
    const Tensor deviations = population.var * relu(population.elements - 1) * share;
    return cat({n.reshape({1}), population.mean, deviations});
  }

  /// Sets the running statistics to those of the moments of all ranks, (ranks, 1 + 2C). Returns
  /// false, and changes nothing, where they count no value. The formula is that of Chan, Golub and
  /// LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
  bool finish(const Tensor& moments) {
    const std::int64_t c = channels();
    const Tensor counts = moments.slice(1, 0, 1), means = moments.slice(1, 1, 1 + c),
                 deviations = moments.slice(1, 1 + c, 1 + 2 * c);
    const double n = sum(counts).item<double>();
    if (!(n > 0)) return false;
    const Tensor mean = sum(means * counts, {0}) * (1 / n);
    layer_->running_mean.copy_(mean);
    if (n > 1)
      layer_->running_var.copy_(sum(deviations + square(means - mean) * counts, {0}) *
                                (1 / (n - 1)));
    return true;
  }

 private:
  std::string path_;
  BatchNorm* layer_;
  bool was_training_;
};

namespace {

// Ranks outside of `group` would go on with other statistics than those that they have shared.
void check_group(const std::string& path, const BatchNorm& layer, const ProcessGroup& group) {
  const auto& shared = layer.process_group();
  if (!shared || shared->size() == 1) return;
  const std::vector<int>& all = group.implementation()->info().world_ranks;
  for (const int rank : shared->implementation()->info().world_ranks)
    if (std::find(all.begin(), all.end(), rank) == all.end())
      fail<ValueError>(
          "recompute_statistics: SyncBatchNorm '{}' shares its statistics with rank {} of the "
          "world, which is not in the group '{}' that was given; give a group of all its ranks",
          path, rank, group.name());
}

std::vector<StatisticsRun> start_runs(Module& module, const ProcessGroup& group) {
  std::vector<StatisticsRun> runs;
  for (const auto& [path, below] : module.named_modules()) {
    auto* layer = dynamic_cast<BatchNorm*>(below);
    if (!layer || !layer->running_mean.defined() || layer->is_frozen()) continue;
    check_group(path, *layer, group);
    runs.emplace_back(path, *layer);
  }
  return runs;
}

}  // namespace

std::vector<std::string> recompute_statistics(Module& module,
                                              const std::function<void()>& run_batches,
                                              const ProcessGroup& group) {
  const NoGrad no_grad;
  std::vector<StatisticsRun> runs = start_runs(module, group);
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
