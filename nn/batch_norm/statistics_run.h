// A StatisticsRun makes one layer normalise by its batches, as in training, and pools these batches
// beside the running statistics, which stay as they are. recompute_statistics() and
// batch_norm_report() run the forwards of a model in this state.
#pragma once

#include "layer.h"

#include <string>
#include <utility>
#include <vector>

namespace tutti::nn {

/// Makes one layer pool the batches that it sees, in float64, until this object is destroyed.
class StatisticsRun {
 public:
  StatisticsRun(std::string path, BatchNorm& layer);
  ~StatisticsRun();
  StatisticsRun(const StatisticsRun&) = delete;
  StatisticsRun& operator=(const StatisticsRun&) = delete;

  const std::string& path() const { return path_; }
  BatchNorm& layer() const { return layer_; }
  std::int64_t channels() const { return layer_.pooled_statistics_.mean.numel(); }

  /// Calls `observe` with the input (dense, (N, C, ...)) and the position weights (undefined if all
  /// are 1) of every forward of the layer on this rank, until this object is destroyed.
  void observe(std::function<void(const Tensor& x, const Tensor& weights)> observe);

  /// Returns (count, means, sums of squared deviations) of the values on this rank, float64,
  /// (1 + 2C). Ranks that share their statistics have pooled all of them already: only the first of
  /// these ranks counts.
  Tensor moments() const;

  /// Sets the running statistics to those of the moments of all ranks, (ranks, 1 + 2C). Returns
  /// false, and changes nothing, where they count no value.
  bool finish(const Tensor& moments);

 private:
  std::string path_;
  BatchNorm& layer_;
  bool was_training_;
};

/// Returns the moments (1 + 2C) of the union of sets of values, each with a row of `moments`. The
/// formula is that of Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
/// computing sample variances" (1979).
Tensor merged_moments(const Tensor& moments);

/// Returns every BatchNorm in `module` that tracks statistics and is not frozen, with its path.
/// ValueError, which begins with `function`, if a layer shares its statistics with ranks that are
/// not in `group`: these would go on with other statistics.
std::vector<std::pair<std::string, BatchNorm*>> tracking_layers(const char* function,
                                                                Module& module,
                                                                const ProcessGroup& group);

}  // namespace tutti::nn
