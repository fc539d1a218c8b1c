// Arrivals: who waits for whom. While one lives it takes the times of every collective of a group
// (and of its communicator for normalisation); report() compares them over the ranks, so that a
// straggler has a name. Nothing is communicated before that, and no clocks are compared: a
// collective is done at about the same moment everywhere, so the rank for which it took the
// shortest time is the one that came last, by the difference to the longest.
#pragma once

#include "../process_group.h"

#include <string>
#include <vector>

namespace tutti::distributed {

class Arrivals {
 public:
  /// Error where another one observes the group. On CUDA tensors the host does not wait, and the
  /// figures are the host's.
  explicit Arrivals(ProcessGroup group);
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  /// How far apart the ranks came to the collectives of one name: seconds between the first and the
  /// last of them.
  struct Skew {
    std::string name;
    std::int64_t calls = 0;
    double mean = 0, largest = 0;
  };
  struct Report {
    std::int64_t collectives = 0;
    std::vector<double> waited;  ///< by rank: seconds in which its thread was held up in wait()
    std::vector<double>
        held_up;  ///< by rank: seconds that the first to come waited, where this one came last
    std::vector<std::int64_t> came_last;  ///< by rank: to how many collectives
    std::vector<Skew>
        skews;  ///< of the group's own collectives (gradient buckets), in order of appearance
    int straggler() const;  ///< the rank that held up the others most
  };
  /// Collective: what has happened since the last report. 8 bytes a collective, by two all-reduces,
  /// and 24 a rank.
  Report report();

 private:
  class Log;

  ProcessGroup group_;
  std::shared_ptr<Log> main_, normalization_;  // null on a group of one
};

}  // namespace tutti::distributed
