// What --bn-report and --recompute-statistics do at the end of an epoch: forwards on training
// batches, and a test with running and with recomputed statistics. The statistics themselves are
// the library's (nn/batch_norm/report/report.h, recompute_statistics.h).
#pragma once

#include "evaluation.h"

#include <tutti/data/loader.h>
#include <tutti/nn/batch_norm/report/report.h>
#include <tutti/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace tutti::examples {

/// The result of --bn-report at the end of an epoch.
struct BatchNormCheck {
  nn::BatchNormReport report = {};
  std::int64_t batches = 0;  ///< the global batches of training images that the report has seen
  /// The test figures of the same weights with running statistics, and with those of the batches.
  LossAndAccuracy running = {}, recomputed = {};
};

/// Returns the report and the figures, score_name() of which is `score`, as text of several lines.
std::string describe(const BatchNormCheck& check, const char* score);

/// Forwards of a network on training batches, without gradients. Every rank runs the same number.
class StatisticsBatches {
 public:
  /// `options` are those of the loader of training images. Takes at most `batches` of an epoch.
  StatisticsBatches(std::shared_ptr<const data::Dataset> images, data::DataLoader::Options options,
                    std::int64_t batches, Device device);

  /// Returns the number of global batches of one run.
  std::int64_t count() const { return count_; }
  /// Runs the forwards. The number of the epoch decides which images they see.
  void run(nn::Layer& net, std::int64_t epoch);

 private:
  data::DataLoader loader_;
  Device device_;
  std::int64_t count_ = 0;
};

/// Reports on the layers of `net`, and evaluates it with running and with recomputed statistics;
/// afterwards it has its running statistics again. Collective.
BatchNormCheck check_batch_norm(nn::Layer& net, const std::function<void()>& run_batches,
                                const std::function<LossAndAccuracy()>& evaluate,
                                const ProcessGroup& group);

}  // namespace tutti::examples
