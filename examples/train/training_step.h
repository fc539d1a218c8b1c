// TrainingStep: what the device computes in one step of training, and StepTimer: where the time of
// the steps goes.
#pragma once

#include "evaluation.h"
#include "optimization.h"
#include "options.h"

#include <tutti/data/batch.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/distributed/process_group.h>
#include <tutti/nn/module.h>

#include <array>
#include <chrono>
#include <functional>
#include <vector>

namespace tutti::examples {

/// The parts of a training step.
enum class StepPart { load, forward, backward, optimizer, waiting, other };
constexpr std::size_t step_part_count = 6;

/// The seconds that one rank spent in each part, and the number of steps. `waiting` is the time in
/// which the rank's thread was blocked for other ranks, which no other part contains; `other` is
/// what remains of the time in which the rank trained.
struct StepTimes {
  std::int64_t steps = 0;
  std::array<double, step_part_count> seconds{};

  double& operator[](StepPart part) { return seconds[static_cast<std::size_t>(part)]; }
  double operator[](StepPart part) const { return seconds[static_cast<std::size_t>(part)]; }
  double total() const;
};

/// Sums up the parts of a rank's steps.
class StepTimer {
 public:
  /// Returns the seconds that this rank has waited for other ranks, from any start on.
  using Waited = std::function<double()>;
  explicit StepTimer(Waited waited) : waited_(std::move(waited)) {}

  /// Adds the time from its construction to its destruction to a part, and what of it was spent
  /// waiting for other ranks to `waiting`. Parts do not nest, except in `other`, which gets what
  /// the parts inside of it leave.
  class Scope {
   public:
    Scope(StepTimer& timer, StepPart part);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StepTimer& timer_;
    StepPart part_;
    std::chrono::steady_clock::time_point start_;
    double counted_before_, waited_before_, waiting_before_;
  };
  void count_step() { ++times_.steps; }
  /// Returns the times of every rank since the last call, and starts anew. This call is collective.
  std::vector<StepTimes> take(const ProcessGroup& group);

 private:
  Waited waited_;
  StepTimes times_;
};

class TrainingStep {
 public:
  /// What a step reads and changes. All of it must outlive the TrainingStep.
  struct Parts {
    const TrainOptions& options;
    nn::Layer& net;
    DataParallel& data_parallel;  ///< of the parameters of `net`
    Optimization& optimization;
    LossSums& sums;  ///< gets the losses and the correct answers
    StepTimer& timer;
  };
  explicit TrainingStep(const Parts& parts) : parts_(parts) {}

  /// Makes a step on this rank's part of a global batch. The gradient is that of the mean loss over
  /// the global batch, however unevenly ranks and micro batches share it. Every rank calls this
  /// with the same batch.global_size.
  void run(const data::Batch& batch);

 private:
  void compute_gradients(const data::Batch& micro_batch);

  Parts parts_;
};

}  // namespace tutti::examples
