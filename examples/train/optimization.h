// Optimization: the optimizer with its schedule, gradient clipping and, in float16, its loss
// scaler: all that turns a loss into new parameters, with its state for checkpoints.
#pragma once

#include "options.h"
#include "run_log.h"

#include <tutti/optim/grad_scaler.h>
#include <tutti/optim/optimizer.h>
#include <tutti/optim/plateau.h>
#include <tutti/optim/schedule.h>

#include <memory>

namespace tutti::examples {

struct Checkpoint;

/// Returns the names that --optimizer and --schedule take.
const std::vector<std::string>& optimizer_names();
const std::vector<std::string>& schedule_names();

/// Makes the optimizer of this name for the parameters. Without options.norm_decay those with one
/// dimension, which are the weights and biases of normalisation and the biases of other layers, are
/// a group of their own without weight decay (and without LARS's local rate). Throws a ValueError
/// for an unknown name.
std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerOptions& options,
                                                 const ScheduleOptions& schedule,
                                                 const std::vector<Tensor>& parameters);

/// Returns the factor on the learning rate, and the momentum where the schedule sets it (else an
/// empty function), for a run of this length. Throws a ValueError for an unknown name.
optim::Schedule make_schedule(const ScheduleOptions& options, const RunLength& length);
optim::Schedule make_momentum_schedule(const OptimizerOptions& options,
                                       const ScheduleOptions& schedule, const RunLength& length);

/// Returns the steps of the warm-up; 0 where there is none.
std::int64_t warmup_steps(const ScheduleOptions& options, const RunLength& length);

class Optimization {
 public:
  /// The schedule fits a run of this length.
  Optimization(std::vector<Tensor> parameters, const TrainOptions& options,
               const RunLength& length);
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

}  // namespace tutti::examples
