// make_report(): gathers what report.html shows of a run from the trainer's objects. What the page
// looks like is the business of examples/report.
#pragma once

#include "../report/run_report.h"
#include "dataset.h"
#include "options.h"

#include <tutti/distributed/process_group.h>

namespace tutti::examples {

/// The parts of a run that a report is made of.
struct ReportSource {
  const TrainOptions& options;
  const TrainingData& data;
  const ProcessGroup& group;
  Device device;
  RunLength length;
  const std::vector<Metrics>& rows;
  std::string headline;
};

/// Returns the report at the end of an epoch. Reads the test images of the predictions once more;
/// one that cannot be read is shown as a grey square.
RunReport make_report(const ReportSource& run, TestDetails test, std::vector<StepTimes> step_times);

}  // namespace tutti::examples
