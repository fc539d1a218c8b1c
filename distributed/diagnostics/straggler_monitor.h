// StragglerMonitor: finds the rank that the other ranks of a group wait for. A monitor records how
// long each collective of the group, and of its communicator for normalization statistics, takes on
// this rank; report() compares these times over the ranks. Nothing is communicated before report(),
// and no clocks are compared: a collective ends at about the same moment on every rank, so the rank
// on which it took the shortest time was the last to call it.
#pragma once

#include "../process_group.h"

#include <string>
#include <vector>

namespace tutti::distributed {

/// Measures which rank the others wait for, and for how long.
class StragglerMonitor {
 public:
  /// Starts to observe `group`. Throws an Error if another monitor observes the group already. For
  /// CUDA tensors the host does not wait in wait(), so the times are those of the host alone.
  [[nodiscard]] explicit StragglerMonitor(ProcessGroup group);
  ~StragglerMonitor();
  StragglerMonitor(const StragglerMonitor&) = delete;
  StragglerMonitor& operator=(const StragglerMonitor&) = delete;

  /// The time between the first and the last rank's arrival at the collectives of one name.
  struct Skew {
    std::string name;
    std::int64_t calls = 0;
    double mean_seconds = 0, largest_seconds = 0;
  };
  /// The report is the same on every rank. The vectors have one element for each rank.
  struct Report {
    std::int64_t collectives = 0;
    /// How long the rank's thread was blocked in Work::wait().
    std::vector<double> waited_seconds;
    /// How long the first rank waited for this one, summed over the collectives to which this rank
    /// came last.
    std::vector<double> held_up_seconds;
    /// The number of collectives to which the rank came last.
    std::vector<std::int64_t> came_last;
    /// The skews of the group's own collectives (gradient buckets among them), in the order in
    /// which their names appeared.
    std::vector<Skew> skews;
    /// Returns the rank that held up the others for the longest time.
    int straggler() const;
  };
  /// Reports on the collectives since the last report. This call is collective: it issues two
  /// all-reduces of 4 bytes for each recorded collective and an all-gather of 24 bytes a rank.
  Report report();
  /// Returns for how many seconds this rank's thread was blocked in Work::wait() since the last
  /// report.
  double waited_seconds() const;

 private:
  class Log;

  ProcessGroup group_;
  std::shared_ptr<Log> main_, normalization_;  // null on a group of one rank
};

}  // namespace tutti::distributed
