// What a person sees of a run while it goes on: Progress shows a bar on a terminal, and plain lines
// elsewhere. What it prints comes from rows of metrics; run_log.h calls it.
#pragma once

#include "metrics.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace tutti::examples {

/// Flushes `out`. Throws a FileError if what was printed could not be written.
void flush(std::FILE* out);

class Progress {
 public:
  /// Writes to `out`, which it never closes; null shows nothing. `first_step` steps were made
  /// earlier, by another process. `score` names what a test measures.
  Progress(std::FILE* out, const RunLength& length, std::int64_t first_step,
           std::string score = "test accuracy");

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
  std::string score_;
  Clock::time_point start_ = Clock::now(), shown_ = start_;
};

}  // namespace tutti::examples
