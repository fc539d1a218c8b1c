// Learning-rate schedules. A Schedule is a function of the step number alone, so it has no state to
// lose; a Scheduler applies one to an optimizer step by step. Values are relative to the rate the
// optimizer was made with.
#pragma once

#include "optimizer.h"

#include <functional>

namespace tutti::optim {

/// Step number (from 0) -> factor on the learning rate, or, for momentum, the value itself.
using Schedule = std::function<double(std::int64_t step)>;

/// gamma^(step / every), the division rounded down.
struct StepDecay {
  std::int64_t every;
  double gamma = 0.1;
};
Schedule step_decay(StepDecay options);

/// From 1 at step 0 to `minimum` at `steps` along half a cosine (Loshchilov and Hutter, "SGDR",
/// ICLR 2017, without restarts), and `minimum` from then on.
struct Cosine {
  std::int64_t steps;
  double minimum = 0;
};
Schedule cosine(Cosine options);

/// Linearly from `start` at step 0 to 1 at `steps`; from there `then`, counted from its own step 0,
/// or 1.
struct LinearWarmup {
  std::int64_t steps;
  double start = 1.0 / 3;
};
Schedule linear_warmup(LinearWarmup options, Schedule then = {});

/// Smith and Topin's one-cycle policy ("Super-convergence", 2018) as PyTorch's OneCycleLR runs it,
/// relative to the peak: from 1/div up to 1 during `warm_fraction` of the steps, then down to
/// 1/(div final_div) at the last, along half cosines (or lines). Steps past the last stay there.
struct OneCycle {
  std::int64_t steps;
  double warm_fraction = 0.3;
  double div = 25;
  double final_div = 1e4;
  bool linear = false;
  double base_momentum = 0.85;  ///< at the peak; used by one_cycle_momentum alone
  double max_momentum = 0.95;   ///< at the start and the end
};
Schedule one_cycle(OneCycle options);
/// The momentum that goes with it (Adam's beta1): high where the rate is low.
Schedule one_cycle_momentum(OneCycle options);

class Scheduler {
 public:
  /// Sets the rate (and the momentum, where `momentum` is given) of step 0. The optimizer must
  /// outlive the scheduler.
  Scheduler(Optimizer& optimizer, Schedule rate, Schedule momentum = {});
  /// Call after every optimizer step.
  void step() { set_position(position_ + 1); }
  /// How many steps were taken. Setting it is how a resumed run goes on; ValueError when negative.
  std::int64_t position() const { return position_; }
  void set_position(std::int64_t position);

 private:
  Optimizer& optimizer_;
  std::vector<double> base_rates_;
  Schedule rate_, momentum_;
  std::int64_t position_ = 0;
};

}  // namespace tutti::optim
