// What one step of training does: Optimization turns a loss into new parameters (optimizer,
// schedule, clipping, loss scaler), TrainingStep computes the loss of a batch and its gradients,
// and StepTimer says where the time goes.
#pragma once

#include "evaluation.h"
#include "metrics.h"
#include "options.h"

#include <tutti/data/batch.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/distributed/process_group.h>
#include <tutti/nn/module.h>
#include <tutti/optim/grad_scaler.h>
#include <tutti/optim/optimizer.h>
#include <tutti/optim/plateau.h>
#include <tutti/optim/schedule.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

namespace tutti::examples {

struct Checkpoint;

/// Returns the names that --optimizer and --schedule take.
const std::vector<std::string>& optimizer_names();
const std::vector<std::string>& schedule_names();

/// Makes the optimizer of this name for the parameters. Without options.norm_decay those with one
/// dimension, which are the weights and biases of normalisation and the biases of other layers, are
/// a group of their own without weight decay (and without LARS's local rate). The first
/// `of_backbone` parameters have the rate of the backbone, in groups of their own. Throws a
/// ValueError for an unknown name.
std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerOptions& options,
                                                 const ScheduleOptions& schedule,
                                                 const std::vector<Tensor>& parameters,
                                                 std::size_t of_backbone = 0);

/// Returns the factor on the learning rate, and the momentum where the schedule sets it (else an
/// empty function), for a run of this length. Throws a ValueError for an unknown name.
optim::Schedule make_schedule(const ScheduleOptions& options, const RunLength& length);
optim::Schedule make_momentum_schedule(const OptimizerOptions& options,
                                       const ScheduleOptions& schedule, const RunLength& length);

/// Returns the steps of the warm-up; 0 where there is none.
std::int64_t warmup_steps(const ScheduleOptions& options, const RunLength& length);

class Optimization {
 public:
  /// The schedule fits a run of this length. `of_backbone` is that of make_optimizer().
  Optimization(std::vector<Tensor> parameters, const TrainOptions& options, const RunLength& length,
               std::size_t of_backbone = 0);
  Optimization(const Optimization&) = delete;
  Optimization& operator=(const Optimization&) = delete;

  void zero_grad() { optimizer_->zero_grad(); }
  /// Computes the gradients of `loss`, scaled where a scaler is in use, and adds them to those that
  /// are there.
  void backward(const Tensor& loss);
  /// Updates the parameters with the gradients, clipped where the options say so. A CUDA graph may
  /// capture this.
  void update();
  /// Sets the learning rate (and momentum) of the next step.
  void advance_schedule() {
    last_rate_ = optimizer_->learning_rate();
    schedule_.step();
  }
  /// Takes the test loss at the end of an epoch, which a schedule that follows it waits for. Every
  /// rank passes the same value.
  void end_epoch(double test_loss);
  /// Returns the learning rate of the last step that was made.
  double last_learning_rate() const { return last_rate_; }

  optim::OptimizerState optimizer_state() const { return optimizer_->state_dict(); }
  /// Returns the state of the loss scaler; empty where none is in use.
  StateDict scaler_state() const { return scaler_ ? scaler_->state_dict() : StateDict(); }
  /// Returns the state of a schedule that follows the test loss; empty where none is in use.
  StateDict plateau_state() const { return plateau_ ? plateau_->state_dict() : StateDict(); }
  /// Loads the optimizer and the loss scale, and sets the schedule. Throws a CheckpointError that
  /// names the entry, and changes nothing, where one does not fit.
  void restore(const Checkpoint& checkpoint);

 private:
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::Scheduler schedule_;
  std::optional<optim::ReduceOnPlateau> plateau_;
  std::optional<optim::GradScaler> scaler_;
  double clip_norm_;  // 0 for none
  double last_rate_ = 0;
};

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
  /// The sum of the losses of a micro batch, and the classes that the network says.
  struct Forward {
    Tensor loss_sum, answers;
  };
  Forward forward(const data::Batch& micro_batch) const;
  void compute_gradients(const data::Batch& micro_batch);

  Parts parts_;
};

}  // namespace tutti::examples
