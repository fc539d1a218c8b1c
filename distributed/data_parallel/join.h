// Join: training where the ranks have different numbers of batches. Before each step the ranks tell
// each other how many samples they have for it; one that has none goes through the step with an
// empty batch, so that every collective of forward and backward (gradient buckets, SyncBatchNorm)
// comes in the usual order by itself and counts it as nothing. It knows a group, and neither models
// nor data.
#pragma once

#include "../process_group.h"

#include <cstdint>
#include <vector>

namespace tutti::distributed {

/// What becomes of a step for which only some ranks have samples.
enum class Uneven {
  shadow,  ///< it is made; those without take part with an empty batch, until all have run out
  stop,    ///< neither it nor any other is made: all stop together with the first
  error,   ///< DistributedError, on every rank, that names those without
};

/// Over what the gradients of a step are a mean. The same where all ranks have equally many
/// samples.
enum class Divisor {
  samples,       ///< over the samples of all ranks: every sample counts alike
  active_ranks,  ///< over the ranks that have any: the mean of their means
  world_size,    ///< over all ranks, those without counting as zeros: steps become smaller towards
                 ///< the end
};

struct JoinOptions {
  Uneven uneven = Uneven::shadow;
  Divisor divide_by = Divisor::samples;
};

///   distributed::Join join(group);
///   while (join.step(loader.next_size())) {                       // 0 where this rank has none
///   left
///     const Batch batch = loader.next();                          // then of shape (0, C, H, W)
///     const Tensor sum = cross_entropy(net(batch.images), batch.labels, {.reduction =
///     LossReduction::sum}); sgd.zero_grad(); (sum * join.weight()).backward(); sgd.step(); //
///     everywhere: the ranks stay equal
///   }
///
/// Every layer of this library takes an empty batch; its gradients are zeros and running statistics
/// stay as they are.
class Join {
 public:
  explicit Join(ProcessGroup group, JoinOptions options = {})
      : group_(std::move(group)), options_(options) {}

  /// Collective: one all-gather of 8 bytes a rank (none on a group of one). `samples` is what this
  /// rank has for the next step. Returns whether the step is to be made, the same on every rank.
  /// ValueError where `samples` is negative.
  [[nodiscard]] bool step(std::int64_t samples);

  // ---- about the step that has begun
  std::int64_t samples() const { return total_; }  ///< of all ranks
  int active_ranks() const { return active_; }     ///< that have any
  /// What the *sum* of this rank's losses is to be multiplied with, so that DataParallel's mean
  /// over the ranks is the mean that `divide_by` says. (The sum, since the mean over an empty batch
  /// is not a number.)
  double weight() const { return weight_; }

 private:
  double weight_of(std::int64_t samples) const;
  [[noreturn]] void refuse(const std::vector<std::int64_t>& samples) const;

  ProcessGroup group_;
  JoinOptions options_;
  std::int64_t steps_ = 0, total_ = 0;
  int active_ = 0;
  double weight_ = 0;
};

}  // namespace tutti::distributed
