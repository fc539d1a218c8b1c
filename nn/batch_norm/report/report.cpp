#include "report.h"

#include "../../../autograd/functions.h"
#include "../../../autograd/grad_mode.h"
#include "../../../core/create.h"
#include "../../../distributed/functional.h"
#include "../../../kernels/kernels.h"
#include "../statistics_run.h"

#include <algorithm>
#include <cmath>
#include <deque>

namespace tutti::nn {

// Defined in advice.cpp.
std::vector<std::string> batch_norm_advice(const std::vector<BatchNormReport::Layer>& layers);

namespace {

using Layer = BatchNormReport::Layer;
using Vector = std::vector<double>;

constexpr double constant_share_of_eps = 0.01;
constexpr double silent_share_of_largest = 1e-3;
constexpr double exploded_magnitude = 1e4;
// A standard deviation of 0 is compared as this share of the other one, whose logarithm is finite.
constexpr double least_std_ratio = 1e-4;
constexpr double stray_limit = 0.25;

// What one rank has seen of one layer. Ranks exchange it as a row of float64 numbers.
struct Findings {
  double samples, batches, count;  // of values per channel
  Vector mean, m2, running_mean, running_var;

  static std::int64_t size(std::int64_t channels) { return 3 + 4 * channels; }
  Findings(const double* numbers, std::int64_t channels)
      : samples(numbers[0]), batches(numbers[1]), count(numbers[2]) {
    const double* begin = numbers + 3;
    for (Vector* part : {&mean, &m2, &running_mean, &running_var}) {
      part->assign(begin, begin + channels);
      begin += channels;
    }
  }
};

// A layer under observation.
class Observation {
 public:
  Observation(const std::string& path, BatchNorm& layer)
      : run_(path, layer),
        moments_(zeros({1, 1 + 2 * run_.channels()}, {float64, layer.running_mean.device()})) {
    run_.observe([this](const Tensor& x, const Tensor& weights) {
      const Tensor packet = empty({kernels::packet_size(x.size(1))}, {float64, x.device()});
      kernels::on(x.device()).batch_norm.moments(x, weights, packet);
      const Tensor batch = cat(
          {packet.slice(0, 0, 1), packet.slice(0, kernels::packet_header_size, packet.numel())});
      moments_ = merged_moments(cat({moments_, batch.unsqueeze(0)})).unsqueeze(0);
      samples_ += static_cast<double>(x.size(0));
      ++batches_;
    });
  }
  const StatisticsRun& run() const { return run_; }
  Tensor numbers() const {
    const BatchNorm& layer = run_.layer();
    const Tensor counts = tensor({samples_, batches_}, {float64});
    return cat({counts.to(layer.running_mean.device()), moments_.flatten(),
                layer.running_mean.to(float64), layer.running_var.to(float64)});
  }

 private:
  StatisticsRun run_;
  Tensor moments_;  // (1, 1 + 2C), see StatisticsRun::moments()
  double samples_ = 0, batches_ = 0;
};

// Returns the variance by whose root the layer divides.
double divided_variance(double variance, const kernels::Epsilon& eps) {
  return eps.floor ? std::max(variance, eps.value) : variance + eps.value;
}

bool is_exploded(double value) { return !(std::abs(value) <= exploded_magnitude); }

// Sorts channels out of which no distance can be measured, and returns the others.
std::vector<std::size_t> find_channels(Layer& report, const BatchNorm& layer,
                                       const kernels::Epsilon& eps, const Vector& mean,
                                       const Vector& var) {
  const Vector weight = layer.weight.defined() ? to_vector(layer.weight) : Vector(mean.size(), 1);
  double largest = 0;
  for (const double w : weight) largest = std::max(largest, std::abs(w));
  std::vector<std::size_t> healthy;
  for (std::size_t c = 0; c < mean.size(); ++c) {
    const auto channel = static_cast<std::int64_t>(c);
    const bool explodes = is_exploded(mean[c]) || is_exploded(std::sqrt(var[c])) ||
                          !std::isfinite(weight[c]);
    const bool is_constant = var[c] < constant_share_of_eps * eps.value ||
                             !(divided_variance(var[c], eps) > 0);
    if (explodes) report.exploded.push_back(channel);
    if (is_constant) report.constant.push_back(channel);
    if (std::abs(weight[c]) <= silent_share_of_largest * largest) report.silent.push_back(channel);
    if (!explodes && !is_constant) healthy.push_back(c);
  }
  return healthy;
}

// Measures the running statistics of all ranks against mean and variance of all values.
void compare_running(Layer& report, const std::vector<Findings>& ranks, const Findings& all,
                     const kernels::Epsilon& eps, const std::vector<std::size_t>& healthy) {
  if (healthy.empty()) return;
  double squares = 0, logs = 0;
  for (const std::size_t c : healthy) {
    const double var = divided_variance(all.m2[c] / all.count, eps), std = std::sqrt(var),
                 running = std::max(0.0, divided_variance(ranks[0].running_var[c], eps)),
                 gap = ranks[0].running_mean[c] - all.mean[c];
    const double scale = std::sqrt(var / running) - 1;
    // Evaluation divides by 0 where the running variance is 0 and there is no eps, and ruins every
    // output where a running mean is NaN.
    squares += running > 0 && std::isfinite(gap) ? gap * gap / running + scale * scale : INFINITY;
    report.mean_distance += std::abs(gap) / std;
    logs += std::log(running / var);
    const auto [least, most] =
        std::minmax_element(ranks.begin(), ranks.end(), [c](const Findings& a, const Findings& b) {
          return a.running_mean[c] < b.running_mean[c];
        });
    report.running_spread += (most->running_mean[c] - least->running_mean[c]) / std;
  }
  const double count = static_cast<double>(healthy.size());
  report.evaluation_error = std::sqrt(squares / count);
  report.mean_distance /= count;
  report.variance_ratio = std::exp(logs / count);
  report.running_spread /= count;
}

double median(Vector values) {
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// Measures the own statistics of each rank against the medians, which one deviating rank of many
// does not move. A channel that is constant on most ranks gives no unit for distances.
void compare_ranks(Layer& report, const std::vector<Findings>& ranks, const kernels::Epsilon& eps,
                   const std::vector<std::size_t>& healthy) {
  Vector squares(ranks.size(), 0);
  for (const std::size_t c : healthy) {
    Vector means, stds;
    for (const Findings& rank : ranks) {
      if (!(rank.count > 0)) continue;
      means.push_back(rank.mean[c]);
      stds.push_back(std::sqrt(divided_variance(rank.m2[c] / rank.count, eps)));
    }
    const double mean = median(means), std = median(stds);
    if (!(std > 0)) continue;
    for (std::size_t rank = 0, i = 0; rank < ranks.size(); ++rank) {
      if (!(ranks[rank].count > 0)) continue;
      const double gap = (means[i] - mean) / std,
                   spread = std::log(std::max(stds[i] / std, least_std_ratio));
      squares[rank] += gap * gap + spread * spread;
      ++i;
    }
  }
  for (const double sum : squares)
    report.rank_distance.push_back(
        healthy.empty() ? 0 : std::sqrt(sum / static_cast<double>(healthy.size())));
}

// Of two ranks both are as far from their median, so more than one rank may be named.
void find_strays(Layer& report, const std::vector<Findings>& ranks) {
  const double largest = *std::ranges::max_element(report.rank_distance);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double distance = report.rank_distance[rank];
    // The mean of a rank's samples is off by 1 / sqrt(samples) where values of a sample are alike.
    const double by_chance = 2 / std::sqrt(std::max(1.0, ranks[rank].samples));
    if (distance > stray_limit + by_chance && distance > 0.75 * largest)
      report.stray_ranks.push_back(static_cast<int>(rank));
  }
}

void describe_average(Layer& report, const BatchNorm& layer) {
  const auto& momentum = layer.options().momentum;
  const bool forgets = momentum && !layer.options().pooled;
  report.updates = layer.num_batches_tracked.item<std::int64_t>();
  const auto updates = static_cast<double>(report.updates);
  report.memory = forgets ? 1 / *momentum : updates;
  report.initial_share = forgets ? std::pow(1 - *momentum, updates) : report.updates == 0;
}

// Makes the report of a layer from the findings of each rank, and those of all ranks together.
Layer examine(const StatisticsRun& run, const std::vector<Findings>& ranks, const Findings& all) {
  const BatchNorm& layer = run.layer();
  const kernels::Epsilon eps{layer.options().eps, layer.options().eps_is_floor};
  const auto& shared = layer.process_group();
  Layer report{.path = run.path(),
               .channels = run.channels(),
               .is_synchronized = shared && shared->communicates()};
  double batches = 0;
  for (const Findings& rank : ranks) {
    report.values.push_back(rank.count);
    batches += rank.batches;
  }
  describe_average(report, layer);
  report.rank_distance.assign(ranks.size(), 0);
  if (!(all.count > 0)) return report;
  report.values_per_batch = all.count / batches * (report.is_synchronized ? shared->size() : 1);

  Vector var = all.m2;
  for (double& each : var) each /= all.count;
  const std::vector<std::size_t> healthy = find_channels(report, layer, eps, all.mean, var);
  compare_running(report, ranks, all, eps, healthy);
  report.rank_distance.clear();
  compare_ranks(report, ranks, eps, healthy);
  find_strays(report, ranks);
  return report;
}

}  // namespace

BatchNormReport batch_norm_report(Module& module, const std::function<void()>& run_batches,
                                  const ProcessGroup& group) {
  const NoGrad no_grad;
  std::deque<Observation> observations;
  for (const auto& [path, layer] : tracking_layers("batch_norm_report", module, group))
    observations.emplace_back(path, *layer);
  run_batches();
  BatchNormReport report;
  if (observations.empty()) return report;
  std::vector<Tensor> parts;
  for (const Observation& each : observations) parts.push_back(each.numbers());
  const Tensor all = distributed::all_gather(cat(parts), group, {.name = "batch_norm_report"});

  const Tensor numbers = all.to(Device::cpu());
  std::int64_t begin = 0;
  for (const Observation& each : observations) {
    const std::int64_t channels = each.run().channels(), end = begin + Findings::size(channels);
    const Tensor of_layer = numbers.slice(1, begin, end).contiguous();
    std::vector<Findings> ranks;
    for (int rank = 0; rank < group.size(); ++rank)
      ranks.emplace_back(of_layer.select(0, rank).data<double>(), channels);
    const Tensor together = of_layer.select(0, 0).clone();
    together.slice(0, 2, 3 + 2 * channels)
        .copy_(merged_moments(of_layer.slice(1, 2, 3 + 2 * channels)));
    report.layers.push_back(examine(each.run(), ranks, {together.data<double>(), channels}));
    begin = end;
  }
  report.warnings = batch_norm_advice(report.layers);
  return report;
}

}  // namespace tutti::nn
