// MetricSums: sums of the loss and of correct answers over samples. The sums stay on the device
// until somebody asks for them, so that no step makes the host wait.
#pragma once

#include <tutti/core/tensor.h>
#include <tutti/distributed/process_group.h>

namespace tutti::examples {

struct LossAndAccuracy {
  double loss = 0, accuracy = 0;
};

/// Returns the class of each row of logits (n, classes), int64 (n): that of the largest logit, or
/// -1 if that or any other logit is not a number, or the largest one is not finite.
Tensor predicted_classes(const Tensor& logits);

class MetricSums {
 public:
  explicit MetricSums(Device device);

  /// Adds a batch of this rank: the sum of its losses, its answers (n) and labels (n), both
  /// classes.
  void add(const Tensor& loss_sum, const Tensor& answers, const Tensor& labels);
  /// Counts the samples of a global batch, those of all ranks together.
  void count(std::int64_t samples) { samples_ += samples; }
  std::int64_t samples() const { return samples_; }
  /// Returns the means over the samples of all ranks since the last call, and starts anew. This
  /// call is collective.
  LossAndAccuracy take(const ProcessGroup& group);

  /// Returns this rank's sums of losses and of correct answers on the CPU, float64 (2), for a
  /// checkpoint.
  Tensor sums() const { return sums_.to(Device::cpu()); }
  void restore(const Tensor& sums, std::int64_t samples);

 private:
  Tensor sums_;
  std::int64_t samples_ = 0;
};

}  // namespace tutti::examples
