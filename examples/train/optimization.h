// Optimization: SGD with its one-cycle schedule and, in float16, its loss scaler: all that turns a
// loss into new parameters, with its state for checkpoints.
#pragma once

#include "checkpoint.h"
#include "options.h"

#include <tutti/optim/grad_scaler.h>
#include <tutti/optim/schedule.h>
#include <tutti/optim/sgd.h>

namespace tutti::examples {

class Optimization {
 public:
  /// The schedule ends after `total_steps`. With options.optimizer.momentum 0 the momentum is
  /// scheduled, too.
  Optimization(std::vector<Tensor> parameters, const TrainOptions& options,
               std::int64_t total_steps);
  Optimization(const Optimization&) = delete;
  Optimization& operator=(const Optimization&) = delete;

  void zero_grad() { sgd_.zero_grad(); }
  /// Computes the gradients of `loss`, scaled where a scaler is in use.
  void backward(const Tensor& loss);
  /// Updates the parameters with the gradients. A CUDA graph may capture this.
  void update();
  /// Sets the learning rate (and momentum) of the next step.
  void advance_schedule() { schedule_.step(); }
  double learning_rate() const { return sgd_.learning_rate(); }

  optim::OptimizerState optimizer_state() const { return sgd_.state_dict(); }
  /// Returns the state of the loss scaler; empty where none is in use.
  StateDict scaler_state() const { return scaler_ ? scaler_->state_dict() : StateDict(); }
  /// Loads the optimizer and the loss scale, and sets the schedule. Throws a CheckpointError that
  /// names the entry, and changes nothing, where one does not fit.
  void restore(const Checkpoint& checkpoint);

 private:
  optim::SGD sgd_;
  optim::Scheduler schedule_;
  std::optional<optim::GradScaler> scaler_;
};

}  // namespace tutti::examples
