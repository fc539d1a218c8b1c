// RunReport is the page report.html of a run folder: what the run has done so far, in one file that
// needs no network. The trainer fills the fields; to_html() puts them as JSON into the template
// report.html of this folder, whose script draws them.
#pragma once

#include "../train/batch_norm_check.h"
#include "../train/evaluation.h"
#include "../train/metrics.h"
#include "../train/options.h"
#include "../train/training_data.h"

#include <optional>
#include <string>
#include <vector>

namespace tutti::examples {

/// The parts of a run that the page shows, at the end of an epoch.
struct RunReport {
  const TrainOptions& options;
  const TrainingData& data;
  const ProcessGroup& group;
  Device device;
  RunLength length;
  const std::vector<Metrics>& rows;  ///< All so far. The last one ends an epoch.
  std::string headline;              ///< A sentence about the run.
  Tensor confusion;                  ///< Of the last test; see TestResult.
  std::optional<BatchNormCheck> batch_norm;
  std::vector<std::int64_t> resumed = {};  ///< The steps after which the run was resumed.
};

/// Returns the page. Texts of the report may hold anything.
std::string to_html(const RunReport& report);

}  // namespace tutti::examples
