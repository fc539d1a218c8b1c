// BatchNormReport examines the BatchNorm layers of a model. It compares the running statistics,
// by which evaluation normalises, with those of batches, by which training does, looks for channels
// and ranks that are out of order, and gives advice. It changes nothing; recompute_statistics()
// corrects what it finds most often.
#pragma once

#include "../layer.h"

#include <functional>

namespace tutti::nn {

/// A report holds what a set of batches shows about the BatchNorm layers of a model. Distances are
/// in standard deviations of a channel over all batches and ranks, sqrt(var + eps), or
/// sqrt(max(var, eps)) where eps is a floor. They are means over the channels that are neither
/// constant nor exploded.
struct BatchNormReport {
  /// The findings about one layer.
  struct Layer {
    std::string path;
    std::int64_t channels = 0;
    bool is_synchronized = false;  ///< whether its ranks share their statistics

    // ---- What the layer has seen.
    /// The number of values per channel on each rank.
    std::vector<double> values = {};
    /// The number of values per channel by which one forward normalised, on average.
    double values_per_batch = 0;

    // ---- Why evaluation differs from training.
    /// The error of the output before weight and bias if the running statistics of rank 0 replace
    /// those of the batches: the root mean square over all values.
    double evaluation_error = 0;
    double mean_distance = 0;   ///< |running_mean - mean|
    double variance_ratio = 1;  ///< of the running variance to that of the batches, both with eps
    /// The largest distance between the running means of two ranks; above 0 only where ranks keep
    /// statistics of their own.
    double running_spread = 0;

    // ---- Channels, by their numbers.
    std::vector<std::int64_t> constant = {};  ///< their variance is below eps / 100, or 0
    std::vector<std::int64_t> silent = {};    ///< |weight| is below 1/1000 of the largest one
    /// Mean or standard deviation are above 10,000 or not finite, or the weight is not finite.
    std::vector<std::int64_t> exploded = {};

    // ---- Ranks.
    /// The distance of each rank's own mean and standard deviation from the medians of the ranks,
    /// in the root mean square: |mean - median mean| / median std, and log(std / median std). 0 for
    /// a rank without values.
    std::vector<double> rank_distance = {};
    /// The ranks that are farthest from the others, beyond what the number of their samples
    /// explains.
    std::vector<int> stray_ranks = {};

    // ---- The running average.
    std::int64_t updates = 0;  ///< the number of batches that it has seen (num_batches_tracked)
    /// The number of last updates that it remembers: 1 / momentum, or all updates for a layer that
    /// averages or pools all batches.
    double memory = 0;
    /// The share that the initial values 0 and 1 still have, (1 - momentum)^updates.
    double initial_share = 0;
  };

  std::vector<Layer> layers;  ///< in the order of Module::named_modules()
  /// One sentence or more for each kind of trouble: what was found, where it is worst, what to do.
  std::vector<std::string> warnings;

  /// Returns a table with one line for each layer, and the warnings below it.
  std::string to_string() const;
};

/// Calls `run_batches`, which runs forwards of `module` on typical training batches, and reports
/// what its BatchNorm layers see, over all ranks of `group`. Layers that are frozen or track no
/// statistics are not part of the report.
///
/// The layers normalise by the statistics of the batches meanwhile, as in training; every other
/// module stays in the mode that the caller has set, no gradients are recorded, and nothing of the
/// model changes. Every rank of `group` calls this function, with layers of the same paths and
/// channels, and gets the same report; a rank may run no batch. As in recompute_statistics(), ranks
/// that share statistics run the same number of batches, and all of them are in `group`
/// (ValueError). An exception of `run_batches` passes through.
BatchNormReport batch_norm_report(Module& module, const std::function<void()>& run_batches,
                                  const ProcessGroup& group = distributed::world());

}  // namespace tutti::nn
