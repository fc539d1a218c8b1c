// StepRunner: runs training steps on a device, either as they are or, after the first few, as a
// CUDA graph that is captured once and replayed with one launch. It does not know what a step
// computes.
#pragma once

#include <tutti/core/cuda/graph.h>
#include <tutti/data/batch.h>

#include <functional>
#include <optional>
#include <string>

namespace tutti::examples {

/// Whether to capture steps: on `device`; else `why_not` tells the user the reason, where there is
/// one.
struct GraphChoice {
  std::optional<Device> device = {};
  std::string why_not = {};
};

class StepRunner {
 public:
  using Step = std::function<void(const data::Batch&)>;
  using Say = std::function<void(const std::string&)>;

  /// Captures `step` as a graph on `graph.device`, after three eager steps, by which time cuDNN's
  /// plans, the gradient buckets and the optimizer's state exist. Without a device it never
  /// captures. `say` prints a line to the user.
  StepRunner(Step step, GraphChoice graph, Say say);

  /// Runs a step on `batch`. A batch that differs from the captured one in its shape, or in the
  /// size of the global batch (by which the captured loss is divided), runs eagerly. The runner
  /// says once that this happens, or why there is no graph.
  void run(const data::Batch& batch);

 private:
  bool fits_graph(const data::Batch& batch) const;
  void capture(const data::Batch& batch);
  void replay(const data::Batch& batch);
  void say_why_not();

  Step step_;
  GraphChoice choice_;
  Say say_;
  int steps_ = 0;
  bool has_said_misfit_ = false;
  data::Batch captured_;  // the tensors that the graph reads
  std::optional<cuda::Graph> graph_;
};

}  // namespace tutti::examples
