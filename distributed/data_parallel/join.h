// Join: training where the ranks have different numbers of batches. Before each step the ranks tell
// each other how many samples they have for it. A rank that has none goes through the step with an
// empty batch, so that it takes part in every collective of forward and backward (gradient buckets,
// SyncBatchNorm) and contributes nothing. Join knows a group, and neither models nor data.
#pragma once

#include "../process_group.h"

#include <cstdint>
#include <vector>

namespace tutti::distributed {

/// What happens in a step for which only some ranks have samples.
enum class Uneven {
  shadow,  ///< The step is made; ranks without samples take part with an empty batch.
  stop,    ///< All ranks stop with the first one that has no samples.
  error,   ///< Every rank gets a DistributedError that names the ranks without samples.
};

/// Decides step by step whether to continue, and with which weight:
///
///   distributed::Join join(group);
///   while (join.step(loader.next_size())) {  // 0 where this rank has run out
///     const Batch batch = loader.next();     // then of shape (0, C, H, W)
///     const Tensor loss_sum = cross_entropy(net(batch.images), batch.labels,
///                                           {.reduction = LossReduction::sum});
///     sgd.zero_grad();
///     (loss_sum * join.weight()).backward();
///     sgd.step();                            // on every rank: they stay equal
///   }
///
/// Every layer of this library accepts an empty batch; its gradients are zeros, and running
/// statistics stay as they are.
class Join {
 public:
  [[nodiscard]] explicit Join(ProcessGroup group, Uneven uneven = Uneven::shadow)
      : group_(std::move(group)), uneven_(uneven) {}

  /// Begins a step for which this rank has `samples` samples. Returns whether the step is to be
  /// made, the same on every rank. This call is collective: one all-reduce of 16 bytes, none on a
  /// group of one. Throws a ValueError where `samples` is negative.
  [[nodiscard]] bool step(std::int64_t samples);

  // ---- about the step that has begun

  /// The samples of all ranks.
  std::int64_t samples() const { return total_; }
  /// The factor for the sum of this rank's losses with which DataParallel's mean over the ranks is
  /// the mean over the samples of all ranks; 0 where no rank has any. It applies to the sum,
  /// because the mean over an empty batch is not a number.
  double weight() const { return weight_; }

 private:
  [[noreturn]] void throw_uneven(const std::vector<std::int64_t>& samples) const;

  ProcessGroup group_;
  Uneven uneven_;
  std::int64_t steps_ = 0, total_ = 0;
  double weight_ = 0;
};

}  // namespace tutti::distributed
