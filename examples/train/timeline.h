// The timeline of a run (--trace): one Profile for each process, joined into one file at the end.
#pragma once

#include <tutti/core/trace.h>
#include <tutti/distributed/process_group.h>

namespace tutti::examples {

class Timeline {
 public:
  /// Starts the profile. `world` is that of the processes: ranks that are threads share a timeline
  /// anyway. The ranks should come here together, right after a barrier: their clocks start now.
  Timeline(std::string path, ProcessGroup world)
      : path_(std::move(path)),
        world_(std::move(world)),
        profile_(part(world_.rank()), world_.rank()) {}

  /// Collective: writes `path`. Where a rank never comes here, each process leaves a file of its
  /// own, `path`.rankN.
  void finish() {
    profile_.finish();
    if (world_.size() == 1) return;
    world_.barrier({.name = "timeline"});
    std::vector<std::string> parts;
    for (int r = 0; r < world_.size(); ++r) parts.push_back(part(r));
    if (world_.rank() == 0) trace::merge(parts, path_);
  }

 private:
  std::string part(int rank) const {
    return world_.size() == 1 ? path_ : path_ + ".rank" + std::to_string(rank);
  }

  std::string path_;
  ProcessGroup world_;
  trace::Profile profile_;
};

}  // namespace tutti::examples
