// Progress: what a person sees while training runs. On a terminal it is a bar that redraws itself,
// elsewhere, and under mpirun, a plain line every ten seconds. What cannot be written, as on a full
// disk, is a FileError.
#pragma once

#include "run_folder.h"

#include <chrono>
#include <cstdio>

namespace tutti::examples {

/// Flushes `out`. Throws a FileError if what was printed could not be written.
void flush(std::FILE* out);

/// How long a run is. `steps` may be less than epochs * steps_per_epoch.
struct RunLength {
  std::int64_t epochs = 0, steps_per_epoch = 0, steps = 0;
};

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

}  // namespace tutti::examples
