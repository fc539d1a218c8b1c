// RunReport: the page report.html of a run folder: what the run has done so far, in one file that
// needs no network and no script. The trainer fills the fields; to_html() draws them.
#pragma once

#include "../train/evaluation.h"
#include "../train/run_folder.h"
#include "../train/training_step.h"

#include <tutti/core/tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::examples {

/// A table of two columns.
using Facts = std::vector<std::pair<std::string, std::string>>;

struct RunReport {
  std::string title = {};     ///< What is trained on what.
  std::string headline = {};  ///< A sentence about the run.
  RunLength length = {};
  std::vector<Metrics> rows = {};             ///< All so far. The last one ends an epoch.
  std::vector<std::string> class_names = {};  ///< Empty where classes have numbers only.
  /// The pictures of test.wrong and test.right: uint8 (height, width, 1 or 3).
  std::vector<Tensor> wrong_images = {}, right_images = {};
  TestDetails test = {};
  std::vector<StepTimes> step_times = {};  ///< Of each rank, in the last epoch.
  bool on_cuda = false;
  std::optional<BatchNormCheck> batch_norm = {};
  Facts configuration = {}, machine = {};
};

/// Returns the page, as HTML that is well-formed XML too. Texts of the report may hold anything.
std::string to_html(const RunReport& report);

/// Returns the facts about this machine and this program, for RunReport::machine: processor, cores,
/// vector instructions, system, compiler and versions.
Facts machine_facts();

}  // namespace tutti::examples
