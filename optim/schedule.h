// Learning-rate schedules. A Schedule is a function of the step number alone, so it has no state to
// save. A Scheduler applies one to an optimizer step by step. Its values are factors on the
// learning rate that the optimizer had at first. A reduction that follows a measured value has a
// state and stands in plateau.h.
#pragma once

#include "optimizer.h"

#include <functional>
#include <vector>

namespace tutti::optim {

/// A function from the step number, counted from 0, to a factor on the learning rate.
using Schedule = std::function<double(std::int64_t step)>;

/// The factor is gamma^(step / every), with the division rounded down.
struct StepDecay {
  std::int64_t every;
  double gamma = 0.1;
};
/// Returns the schedule of these options; ValueError for options out of range.
Schedule step_decay(StepDecay options);

/// The factor is gamma^n, where n is the number of milestones that are not above the step. A
/// milestone that is given twice counts twice.
struct MultiStep {
  std::vector<std::int64_t> milestones;
  double gamma = 0.1;
};
/// Returns the schedule of these options; ValueError for options out of range.
Schedule multi_step(MultiStep options);

/// The factor falls from 1 at step 0 to `minimum` at `steps` along half a cosine (Loshchilov and
/// Hutter, "SGDR", ICLR 2017, without restarts), and stays there.
struct Cosine {
  std::int64_t steps;
  double minimum = 0;
};
/// Returns the schedule of these options; ValueError for options out of range.
Schedule cosine(Cosine options);

/// The factor rises linearly from `start` at step 0 to 1 at `steps`. From there it is that of
/// `then`, whose steps are counted from 0 again, or 1 without a `then`.
struct LinearWarmup {
  std::int64_t steps;
  double start = 1.0 / 3;
};
/// Returns the schedule of these options; ValueError for options out of range.
Schedule linear_warmup(LinearWarmup options, Schedule then = {});

/// Smith and Topin's one-cycle policy ("Super-convergence", 2018) as PyTorch's OneCycleLR computes
/// it, relative to the peak, without its cycle of the momentum. The factor rises from 1/div to 1
/// during `warm_fraction` of the steps and falls to 1/(div final_div) at the last step, along half
/// cosines or lines. It stays there after the last step.
struct OneCycle {
  std::int64_t steps;
  double warm_fraction = 0.3;
  double div = 25;
  double final_div = 1e4;
  bool linear = false;
};
/// Returns the schedule of these options; ValueError for options out of range.
Schedule one_cycle(OneCycle options);

/// Sets the learning rate of an optimizer step by step.
class Scheduler {
 public:
  /// Sets the learning rate of step 0. An empty `rate` is a factor of 1 in every step. The
  /// optimizer must outlive the scheduler.
  Scheduler(Optimizer& optimizer, Schedule rate);
  /// Goes on to the next step. Call it after every step of the optimizer.
  void step() { set_position(position_ + 1); }
  /// The number of steps taken. A resumed run sets it. ValueError, and no change, for a negative
  /// position or a rate that the optimizer refuses.
  std::int64_t position() const { return position_; }
  void set_position(std::int64_t position);
  /// A second factor on the learning rate of this step and all further steps, 1 at first:
  /// ReduceOnPlateau sets it. ValueError, and no change, for a factor that is negative or not
  /// finite.
  double scale() const { return scale_; }
  void set_scale(double scale);

 private:
  void apply(std::int64_t position, double scale);

  Optimizer& optimizer_;
  std::vector<double> base_rates_;
  Schedule rate_;
  std::int64_t position_ = 0;
  double scale_ = 1;
};

}  // namespace tutti::optim
