// What a person sees while training runs: a bar that redraws itself on a terminal, a plain line now
// and then elsewhere.
#pragma once

#include "run_folder.h"

#include <chrono>
#include <cstdio>

namespace tutti::examples {

class Progress {
 public:
  /// `out` is written to, never closed; null shows nothing. `begin` steps were made before, in
  /// another process.
  Progress(std::FILE* out, std::int64_t epochs, std::int64_t steps_per_epoch, std::int64_t begin,
           std::int64_t total_steps);

  /// A line that stays.
  void say(const std::string& line);
  /// After every step; `metrics` holds the figures of the last row, with `step` being the current
  /// one.
  void update(const Metrics& metrics);
  /// At the end of an epoch, with test results.
  void epoch_done(const Metrics& metrics);

 private:
  using Clock = std::chrono::steady_clock;
  std::string describe(const Metrics& metrics) const;
  std::string time_left(const Metrics& metrics) const;

  std::FILE* out_;
  bool terminal_;
  std::int64_t epochs_, steps_per_epoch_, begin_, total_steps_;
  Clock::time_point start_ = Clock::now(), shown_ = start_;
};

}  // namespace tutti::examples
