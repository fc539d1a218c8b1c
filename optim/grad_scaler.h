// GradScaler: loss scaling for float16, whose gradients would underflow (Micikevicius et al.,
// "Mixed precision training", ICLR 2018), with the scale found by trial as in torch.amp.GradScaler.
// A step whose gradients overflowed is skipped. Whether it did, and the scale, stay on the device:
// no step waits for the host.
#pragma once

#include "optimizer.h"

#include <map>

namespace tutti::optim {

/// Use:  scaler.scale(loss).backward();  scaler.step(sgd);  scaler.update();
/// Where gradients are averaged over ranks, an overflow on one of them reaches all, so that all
/// skip the same steps.
class GradScaler {
 public:
  struct Options {
    double init_scale = 65536;
    double growth_factor = 2;  ///< of the scale, after `growth_interval` steps without an overflow
    double backoff_factor = 0.5;  ///< of the scale, after an overflow
    std::int64_t growth_interval = 2000;
  };

  GradScaler() : GradScaler(Options{}) {}
  /// ValueError for factors on the wrong side of 1, or an interval or scale that is not positive.
  explicit GradScaler(Options options);

  /// loss times the scale: what backward starts from.
  Tensor scale(const Tensor& loss);
  /// Divides the optimizer's gradients by the scale, in place: for clipping between backward and
  /// step(), which otherwise does it. Error where it was done already since the last update();
  /// DTypeError for float16 gradients, which it would flush to zero; DeviceError where gradients
  /// are on several devices.
  void unscale_(Optimizer& optimizer);
  /// The optimizer's step, unless one of its gradients is infinite or NaN. Error where it was done
  /// already.
  void step(Optimizer& optimizer);
  /// Adapts the scale to what the steps since the last call found. Error where there was none.
  void update();

  /// The scale as it is now; waits for the device.
  double current_scale() const;
  /// "scale", "growth_tracker" and the options but init_scale, float64 numbers of shape ().
  StateDict state_dict() const;
  /// CheckpointError, and no change, where something is missing or out of range.
  void load_state_dict(const StateDict& state);

 private:
  struct Verdict {
    Tensor found_inf = {};  // float32, shape ()
    bool unscaled = false, stepped = false;
  };
  void move_to(Device device);

  Options options_;
  Tensor scale_,
      tracker_;  // float32, shape (): the scale, and how many steps went well since it last changed
  std::map<const Optimizer*, Verdict> verdicts_;
};

}  // namespace tutti::optim
