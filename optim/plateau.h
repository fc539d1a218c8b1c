// ReduceOnPlateau: reduces the learning rate when a measured value, such as the loss of the
// validation set, no longer improves. It decides as PyTorch's ReduceLROnPlateau does. It knows no
// optimizer: its factor is the scale of a Scheduler, so that it works together with any schedule.
// It has a state, which a checkpoint must contain.
#pragma once

#include "../core/state_dict.h"

#include <cstdint>

namespace tutti::optim {

/// Keeps a factor on the learning rate. After each measurement, for instance after each epoch:
///
///   if (plateau.update(validation_loss)) scheduler.set_scale(plateau.factor());
///
/// Under several ranks, every rank must pass the same value.
class ReduceOnPlateau {
 public:
  struct Options {
    /// The factor is multiplied by it when the value has stopped improving.
    double gamma = 0.1;
    /// The number of measurements without improvement that are accepted. The next one reduces.
    std::int64_t patience = 10;
    /// The number of measurements after a reduction that do not count as missing improvement.
    std::int64_t cooldown = 0;
    /// Whether larger values are better (an accuracy), not smaller ones (a loss).
    bool maximize = false;
    /// An improvement is a change of more than this part of the best value, or of more than this
    /// amount if `relative` is false. It is finite, and below 1 as a part of a value to be
    /// minimised.
    double threshold = 1e-4;
    bool relative = true;
    /// The factor never falls below it.
    double minimum = 0;
  };

  ReduceOnPlateau() : ReduceOnPlateau(Options{}) {}
  /// ValueError unless 0 <= gamma < 1, 0 <= minimum <= 1, the threshold is as described there, and
  /// the other numbers are at least 0.
  explicit ReduceOnPlateau(const Options& options);

  /// Takes the next measurement and returns whether it reduced the factor. NaN is no improvement.
  bool update(double value);
  /// Returns the present factor, which is 1 at first.
  double factor() const { return factor_; }
  /// Returns the best measurement: infinity before the first one, -infinity with `maximize`.
  double best() const { return best_; }

  /// Returns "factor", "best", "bad_updates" and "cooldown_left" as float64 tensors of shape ().
  StateDict state_dict() const;
  /// CheckpointError, and no change, unless these are the tensors that state_dict() returns, with
  /// numbers in their ranges. Afterwards pass factor() to Scheduler::set_scale().
  void load_state_dict(const StateDict& state);

 private:
  bool is_better(double value) const;

  Options options_;
  double factor_ = 1;
  double best_;
  std::int64_t bad_updates_ = 0;    // The measurements without improvement since the last one.
  std::int64_t cooldown_left_ = 0;  // The measurements until missing improvement counts again.
};

}  // namespace tutti::optim
