// RunLog keeps the rows of metrics of a run. Rank 0 writes them into the run folder (metrics.jsonl)
// and onto the screen, and config.json, report.html and the final weights beside them.
// Checkpoints are checkpoint.h's business.
#pragma once

#include "metrics.h"
#include "options.h"

#include <tutti/core/state_dict.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace tutti::examples {

/// Flushes `out`. Throws a FileError if what was printed could not be written.
void flush(std::FILE* out);

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
  void say(const std::string& line);
  /// Prints where training is, every ten seconds; to be called after every step that gives no row,
  /// with the figures of the last row and the present step and epoch.
  void show_step(const Metrics& metrics);
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
  using Clock = std::chrono::steady_clock;

  std::string path(const char* name) const;
  void check_metrics() const;
  std::string describe(const Metrics& metrics) const;

  const TrainOptions& options_;
  const bool has_folder_;
  std::vector<Metrics> rows_;
  std::ofstream metrics_;
  std::FILE* const screen_;  // null on other ranks
  const RunLength length_;
  // The steps whose time counts, and since when.
  Clock::time_point counted_since_ = Clock::now(), shown_ = counted_since_;
  std::int64_t counted_from_;
  bool has_step_ = false;
};

}  // namespace tutti::examples
