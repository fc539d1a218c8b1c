// RunLog keeps the rows of metrics of a run. Rank 0 writes them into the run folder (metrics.jsonl,
// event files) and onto the screen, and config.json, report.html and the final weights beside them.
// Checkpoints are checkpoint.h's business.
#pragma once

#include "event_file.h"
#include "metrics.h"
#include "options.h"
#include "progress.h"

#include <tutti/core/state_dict.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace tutti::examples {

class RunLog {
 public:
  /// `screen` may be null. A resumed run has made `first_step` steps before.
  RunLog(const TrainOptions& options, bool is_rank_0, std::FILE* screen, const RunLength& length,
         std::int64_t first_step);

  /// Begins with the rows of a resumed run. On rank 0 this opens the run folder (none where
  /// options.out is empty) and writes config.json, so that it is called once nothing of a
  /// checkpoint can be refused any more.
  void open(std::vector<Metrics> rows);
  /// Prints a line that stays on the screen.
  void say(const std::string& line) { progress_.say(line); }
  /// Shows a step that gives no row.
  void show_step(const Metrics& metrics) { progress_.update(metrics); }
  /// Adds a row in the middle of an epoch.
  void add_row(const Metrics& row);
  /// Adds the row that ends an epoch, with test results.
  void add_epoch(const Metrics& row);
  /// Replaces report.html; needs a run folder.
  void write_report(const std::string& html);
  /// Saves the weights of a finished run, and says where everything is.
  void save_weights(const StateDict& state, const Metadata& metadata);

  /// Whether this rank writes a run folder.
  bool has_folder() const { return has_folder_; }
  const std::vector<Metrics>& rows() const { return rows_; }

 private:
  std::string path(const char* name) const;
  void check_metrics() const;

  const TrainOptions& options_;
  const bool has_folder_;
  const std::int64_t first_step_;
  std::vector<Metrics> rows_;
  std::ofstream metrics_;
  std::optional<EventFile> events_;  // with options.tensorboard
  Progress progress_;
};

}  // namespace tutti::examples
