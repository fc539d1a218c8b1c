// CapturedStep: runs the steps of a program on a CUDA device, the first few as they are and the
// others as a CUDA graph that is captured once and replayed with one launch. It does not know what
// a step computes. On the CPU a program calls its step itself.
#pragma once

#include "../core/cuda/graph.h"

#include "../core/tensor.h"

#include <optional>
#include <string>
#include <vector>

namespace tutti::optim {

/// Captures `step` as a graph after three steps that run as they are, by which time cuDNN's plans,
/// the gradient buckets and the optimizer's state exist:
///
///   const auto train = [&](const std::vector<Tensor>& in, std::int64_t) { step(in[0], in[1]); };
///   optim::CapturedStep captured(train, Device::cuda(), say);
///   while (const auto batch = loader.next()) captured.run({batch->images, batch->labels});
class CapturedStep {
 public:
  using Step = std::function<void(const std::vector<Tensor>& inputs, std::int64_t global_size)>;
  using Say = std::function<void(const std::string& line)>;

  /// `say` prints a line to the user.
  CapturedStep(Step step, Device device, Say say);

  /// Runs a step on the inputs, of a global batch of `global_size` samples. Inputs whose shapes
  /// differ from the captured ones, or that belong to a batch of another size (by which the
  /// captured loss is divided), run as they are. It says once that this happens, or why there is no
  /// graph.
  void run(const std::vector<Tensor>& inputs, std::int64_t global_size = 0);

 private:
  bool fits_graph(const std::vector<Tensor>& inputs, std::int64_t global_size) const;
  void capture(const std::vector<Tensor>& inputs, std::int64_t global_size);

  Step step_;
  Device device_;
  Say say_;
  int steps_ = 0;
  bool cannot_capture_ = false;
  bool has_said_misfit_ = false;
  std::vector<Tensor> captured_;  // the tensors that the graph reads; undefined ones stay so
  std::int64_t captured_size_ = 0;
  std::optional<cuda::Graph> graph_;
};

}  // namespace tutti::optim
