// Timeline: the trace of a run (--trace). Every process records a Profile, and rank 0 joins them
// into one file at the end.
#pragma once

#include <tutti/core/trace.h>
#include <tutti/distributed/process_group.h>

namespace tutti::examples {

class Timeline {
 public:
  /// Starts to record. `world` is the group of the processes; ranks that are threads share the
  /// recording of their process. Call this right after a barrier, because the clock of each
  /// recording starts now.
  Timeline(std::string path, ProcessGroup world)
      : path_(std::move(path)),
        world_(std::move(world)),
        profile_(file_of(world_.rank()), world_.rank()) {}

  /// Writes `path`. This call is collective. Where a rank never makes it, each process leaves its
  /// own file, `path`.rankN.
  void finish() {
    profile_.finish();
    if (world_.size() == 1) return;
    world_.barrier({.name = "timeline"});
    std::vector<std::string> parts;
    for (int r = 0; r < world_.size(); ++r) parts.push_back(file_of(r));
    if (world_.rank() == 0) trace::merge(parts, path_);
  }

 private:
  std::string file_of(int rank) const {
    return world_.size() == 1 ? path_ : path_ + ".rank" + std::to_string(rank);
  }

  std::string path_;
  ProcessGroup world_;
  trace::Profile profile_;
};

}  // namespace tutti::examples
