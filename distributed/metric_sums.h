// MetricSums: sums over samples, such as the loss and the correct answers, over all ranks. The sums
// stay on the device until somebody asks for them, so that no step makes the host wait.
#pragma once

#include "process_group.h"

#include <vector>

namespace tutti::distributed {

/// Sums of a fixed list of figures, and the number of samples that they are sums over:
///
///   distributed::MetricSums sums(2, device);
///   sums.add({loss_sum, correct});            // in each step, this rank's part of the batch
///   sums.count(batch.global_size);
///   const std::vector<double> means = sums.take(group);  // from time to time
class MetricSums {
 public:
  MetricSums(std::int64_t figures, Device device);

  /// Adds this rank's figures: tensors of one element on any dtype, in the order of the list.
  void add(const std::vector<Tensor>& figures);
  /// Counts the samples of a global batch, those of all ranks together.
  void count(std::int64_t samples) { samples_ += samples; }
  std::int64_t samples() const { return samples_; }
  /// Returns the means over the samples of all ranks since the last call, and starts anew. This
  /// call is collective: one all-reduce.
  std::vector<double> take(const ProcessGroup& group);

  /// Returns this rank's sums on the CPU, float64 (figures), for a checkpoint.
  Tensor sums() const { return sums_.to(Device::cpu()); }
  void restore(const Tensor& sums, std::int64_t samples);

 private:
  Tensor sums_;
  std::int64_t samples_ = 0;
};

}  // namespace tutti::distributed
