// Step: what a training step does on the device: forward, backward, the averaging of gradients and
// the optimizer. Either run as it is, or recorded once as a CUDA graph and replayed with one
// launch.
#pragma once

#include "../data/loader.h"

#include <tutti/core/cuda/graph.h>

#include <functional>
#include <optional>
#include <string>

namespace tutti::examples {

class Step {
 public:
  using Work = std::function<void(const Batch&)>;
  using Say = std::function<void(const std::string&)>;

  /// Given a device, `work` is recorded as a graph, after a few steps as they are (plans are made,
  /// buckets laid out, the optimizer has its state); none: never.
  Step(Work work, std::optional<Device> graph_on, Say say);

  /// The same work on every call, whichever way. Where the batch is not as the recorded one (its
  /// shape, or the size of the global batch, which the recorded loss is divided by) it runs as it
  /// is; that, and why nothing can be recorded, is said once.
  void run(const Batch& batch);
  bool has_graph() const { return graph_.has_value(); }

 private:
  bool fits(const Batch& batch) const;
  void record(const Batch& batch);

  Work work_;
  std::optional<Device> device_;
  Say say_;
  int steps_ = 0;
  bool said_ = false;
  Batch recorded_;  // what the graph reads
  std::optional<cuda::Graph> graph_;
};

}  // namespace tutti::examples
