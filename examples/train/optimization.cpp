#include "optimization.h"

#include "make_optimizer.h"

#include <tutti/core/trace.h>
#include <tutti/optim/clip.h>

#include <algorithm>

namespace tutti::examples {

Optimization::Optimization(std::vector<Tensor> parameters, const TrainOptions& o,
                           const RunLength& length)
    : optimizer_(make_optimizer(o.optimizer, o.schedule, parameters)),
      schedule_(*optimizer_, make_schedule(o.schedule, length),
                make_momentum_schedule(o.optimizer, o.schedule, length)),
      clip_norm_(o.optimizer.clip_norm) {
  if (o.schedule.name == "plateau")
    plateau_.emplace(optim::ReduceOnPlateau::Options{.gamma = o.schedule.gamma,
                                                     .patience = o.schedule.plateau_patience});
  if (o.precision == float16) scaler_.emplace();
}

void Optimization::backward(const Tensor& loss) {
  (scaler_ ? scaler_->scale(loss) : loss).backward();
}

void Optimization::update() {
  const trace::Span span("optimizer");
  if (clip_norm_ > 0) {
    if (scaler_) scaler_->unscale_(*optimizer_);
    optim::clip_grad_norm(optimizer_->parameters(), clip_norm_);
  }
  if (!scaler_) return optimizer_->step();
  scaler_->step(*optimizer_);
  scaler_->update();
}

void Optimization::end_epoch(double test_loss) {
  if (plateau_ && plateau_->update(test_loss)) schedule_.set_scale(plateau_->factor());
}

void Optimization::restore(const Checkpoint& checkpoint) {
  if (!scaler_ && !checkpoint.scaler.empty())
    fail<CheckpointError>("it has a loss scale, which only a run in float16 has");
  if (!plateau_ && !checkpoint.plateau.empty())
    fail<CheckpointError>("it has the state of a schedule that only --schedule plateau has");
  // Loading is tried on a copy, so that a refusal changes nothing.
  std::optional<optim::ReduceOnPlateau> plateau = plateau_;
  if (plateau) plateau->load_state_dict(checkpoint.plateau);
  const optim::OptimizerState before = optimizer_->state_dict();
  optimizer_->load_state_dict(checkpoint.optimizer);
  try {
    if (scaler_) scaler_->load_state_dict(checkpoint.scaler);
  } catch (...) {
    optimizer_->load_state_dict(before);
    throw;
  }
  plateau_ = plateau;
  if (plateau_) schedule_.set_scale(plateau_->factor());
  schedule_.set_position(std::max<std::int64_t>(checkpoint.step - 1, 0));
  last_rate_ = optimizer_->learning_rate();
  schedule_.set_position(checkpoint.step);
}

}  // namespace tutti::examples
