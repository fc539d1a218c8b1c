// What one step of training does: Optimization turns a loss into new parameters (optimizer,
// schedule, clipping, loss scaler), and TrainingStep computes the loss of a batch and its
// gradients.
#pragma once

#include "evaluation.h"
#include "metrics.h"
#include "options.h"

#include <tutti/data/batch.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/nn/module.h>
#include <tutti/optim/grad_scaler.h>
#include <tutti/optim/optimizer.h>
#include <tutti/optim/plateau.h>
#include <tutti/optim/schedule.h>

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
                                                 const std::vector<Tensor>& parameters,
                                                 std::size_t of_backbone = 0);

/// Returns the factor on the learning rate for a run of this length. Throws a ValueError for an
/// unknown name.
optim::Schedule make_schedule(const ScheduleOptions& options, const RunLength& length);

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
  /// Sets the learning rate of the next step.
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

class TrainingStep {
 public:
  /// What a step reads and changes. All of it must outlive the TrainingStep.
  struct Parts {
    const TrainOptions& options;
    nn::Layer& net;
    DataParallel& data_parallel;  ///< of the parameters of `net`
    Optimization& optimization;
    LossSums& sums;  ///< gets the losses and the correct answers
  };
  explicit TrainingStep(const Parts& parts) : parts_(parts) {}

  /// Makes a step on this rank's part of a global batch. The gradient is that of the mean loss over
  /// the global batch, or over its pixels that have a class, however unevenly ranks and micro
  /// batches share them. Every rank calls this with the same batch.global_size.
  void run(const data::Batch& batch);

 private:
  /// The sum of the losses of a micro batch, and the classes that the network says.
  struct Forward {
    Tensor loss_sum, answers;
  };
  Forward forward(const data::Batch& micro_batch) const;
  Tensor count_labels(const data::Batch& batch) const;
  void compute_gradients(const data::Batch& micro_batch, const Tensor& labels);

  Parts parts_;
};

}  // namespace tutti::examples
