#include "optimization.h"

#include <tutti/core/trace.h>

namespace tutti::examples {
namespace {

bool schedules_momentum(const TrainOptions& o) { return o.optimizer.momentum == 0; }

optim::SGD::Options sgd_options(const TrainOptions& o) {
  return {.lr = o.optimizer.lr,
          .momentum = schedules_momentum(o) ? 0.95 : o.optimizer.momentum,
          .weight_decay = o.optimizer.weight_decay,
          .nesterov = o.optimizer.nesterov};
}

}  // namespace

Optimization::Optimization(std::vector<Tensor> parameters, const TrainOptions& options,
                           std::int64_t total_steps)
    : sgd_(std::move(parameters), sgd_options(options)),
      schedule_(sgd_, optim::one_cycle({.steps = total_steps}),
                schedules_momentum(options) ? optim::one_cycle_momentum({.steps = total_steps})
                                            : optim::Schedule{}) {
  if (options.precision == float16) scaler_.emplace();
}

void Optimization::backward(const Tensor& loss) {
  (scaler_ ? scaler_->scale(loss) : loss).backward();
}

void Optimization::update() {
  const trace::Span span("optimizer");
  if (!scaler_) return sgd_.step();
  scaler_->step(sgd_);
  scaler_->update();
}

void Optimization::restore(const Checkpoint& checkpoint) {
  if (!scaler_ && !checkpoint.scaler.empty())
    fail<CheckpointError>("it has a loss scale, which only a run in float16 has");
  const optim::OptimizerState before = sgd_.state_dict();
  sgd_.load_state_dict(checkpoint.optimizer);
  try {
    if (scaler_) scaler_->load_state_dict(checkpoint.scaler);
  } catch (...) {
    sgd_.load_state_dict(before);
    throw;
  }
  schedule_.set_position(checkpoint.step);
}

}  // namespace tutti::examples
