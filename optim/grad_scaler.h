// GradScaler: loss scaling for float16, whose gradients would underflow (Micikevicius et al.,
// "Mixed precision training", ICLR 2018). It adapts the scale as torch.amp.GradScaler does: a step
// whose gradients overflowed is skipped, and the scale shrinks. The scale and the verdict stay on
// the device, so that the host never waits.
#pragma once

#include "optimizer.h"

#include <map>

namespace tutti::optim {

/// Scales losses:  scaler.scale(loss).backward();  scaler.step(sgd);  scaler.update();
/// If gradients are averaged over ranks, an overflow on one rank reaches all of them, so that all
/// skip the same steps.
class GradScaler {
 public:
  struct Options {
    double init_scale = 65536;
    /// The scale is multiplied by it after `growth_interval` steps without an overflow.
    double growth_factor = 2;
    /// The scale is multiplied by it after an overflow.
    double backoff_factor = 0.5;
    std::int64_t growth_interval = 2000;
  };

  GradScaler() : GradScaler(Options{}) {}
  /// ValueError for factors on the wrong side of 1, or an interval or scale that is not positive.
  explicit GradScaler(Options options);

  /// Returns loss times the scale, from which backward starts.
  [[nodiscard]] Tensor scale(const Tensor& loss);
  /// Divides the optimizer's gradients by the scale, in place. Call it before clipping; otherwise
  /// step() does it. Error if it was called already since the last update(); DTypeError for float16
  /// gradients, which would underflow; DeviceError if gradients are on several devices.
  void unscale_(Optimizer& optimizer);
  /// Calls the optimizer's step(), which changes nothing if one of the gradients is infinite or
  /// NaN. Error if it was called already since the last update(). If step() throws, call update()
  /// before the next backward.
  void step(Optimizer& optimizer);
  /// Adapts the scale to the verdicts since the last update(). Error if there are none.
  void update();

  /// Returns the present scale; waits for the device.
  double current_scale() const;
  /// Returns "scale", "growth_tracker" and the options except init_scale, as float64 tensors of
  /// shape ().
  StateDict state_dict() const;
  /// CheckpointError, and no change, unless these are the tensors that state_dict() returns, with
  /// numbers in their ranges.
  void load_state_dict(const StateDict& state);

 private:
  // Whether the gradients of an optimizer overflowed since the last update().
  struct Verdict {
    Tensor found_inf = {};  // float32 of shape ().
    bool unscaled = false, stepped = false;
  };
  void move_to(Device device);

  Options options_;
  // float32 of shape (): the scale, and the number of good steps since the scale last changed.
  Tensor scale_, tracker_;
  std::map<const Optimizer*, Verdict> verdicts_;
};

}  // namespace tutti::optim
