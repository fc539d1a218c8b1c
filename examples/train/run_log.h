// RunLog: the rows of metrics of a run, and where rank 0 shows them: the run folder, and the
// screen, which on a terminal has a bar that redraws itself and elsewhere, also under mpirun, a
// plain line every ten seconds. The other ranks keep the rows and show nothing.
#pragma once

#include "checkpoint.h"
#include "event_file.h"
#include "metrics.h"
#include "options.h"
#include "run_folder.h"

#include <chrono>
#include <cstdio>

namespace tutti::examples {

/// Flushes `out`. Throws a FileError if what was printed could not be written.
void flush(std::FILE* out);

class Progress {
 public:
  /// Writes to `out`, which it never closes; null shows nothing. `first_step` steps were made
  /// earlier, by another process.
  Progress(std::FILE* out, const RunLength& length, std::int64_t first_step);

  /// Prints a line that stays.
  void say(const std::string& line);
  /// Shows where training is; to be called after every step. `metrics` holds the figures of the
  /// last row, with the present step and epoch.
  void update(const Metrics& metrics);
  /// Prints the line of an epoch that has ended, with its test results.
  void epoch_done(const Metrics& metrics);

 private:
  using Clock = std::chrono::steady_clock;
  std::int64_t step_in_epoch(const Metrics& metrics) const;
  std::string describe(const Metrics& metrics) const;
  std::string time_left(const Metrics& metrics) const;
  std::string bar(const Metrics& metrics, std::int64_t columns) const;

  std::FILE* out_;
  bool terminal_;
  RunLength length_;
  std::int64_t first_step_;
  Clock::time_point start_ = Clock::now(), shown_ = start_;
};

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
  void write_report(const std::string& html) { folder_->write_report(html); }
  /// Saves the weights of a finished run, and says where everything is.
  void save_weights(const StateDict& state, const Metadata& metadata);

  /// Whether this rank writes a run folder.
  bool has_folder() const { return folder_.has_value(); }
  const std::vector<Metrics>& rows() const { return rows_; }

 private:
  const TrainOptions& options_;
  const bool is_rank_0_;
  const std::int64_t first_step_;
  std::vector<Metrics> rows_;
  std::optional<RunFolder> folder_;
  std::optional<EventFile> events_;  // with options.tensorboard
  Progress progress_;
};

}  // namespace tutti::examples
