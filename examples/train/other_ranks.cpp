#include "other_ranks.h"

#include "loaders.h"

#include <tutti/core/create.h>

#include <algorithm>

namespace tutti::examples {
namespace {

// Returns the largest number of ranks of at most `most` that divides the batch.
std::int64_t divisor_below(std::int64_t batch, std::int64_t most) {
  std::int64_t ranks = std::clamp<std::int64_t>(most, 1, batch);
  while (batch % ranks != 0) --ranks;
  return ranks;
}

// Returns the smallest number of ranks of at least `least` that divides the batch; the batch where
// there is none.
std::int64_t divisor_above(std::int64_t batch, std::int64_t least) {
  std::int64_t ranks = std::min(least, batch);
  while (batch % ranks != 0) ++ranks;
  return ranks;
}

// With --sharded each rank has whole batches of its own. Throws where those of the ranks together
// are not the same as before.
void check_global_batch(const TrainOptions& o, int before, int now) {
  const std::int64_t batch_before = own_batch_size(o, before), batch = own_batch_size(o, now);
  if (batch_before * before == batch * now) return;
  refuse_checkpoint(
      o, fmt::format("with --sharded its steps had {} images ({} on each of {} ranks), and on {} "
                     "ranks they would have {} ({} on each): give a number of ranks that divides "
                     "--batch-size {}, such as {} or {}",
                     batch_before * before, batch_before, before, now, batch * now, batch,
                     o.batch_size, divisor_below(o.batch_size, now),
                     divisor_above(o.batch_size, now)));
}

// Returns the images of a batch that a rank has, which differ by one at most.
std::string images_of_a_rank(std::int64_t batch, std::int64_t ranks) {
  return batch % ranks == 0 ? std::to_string(batch / ranks)
                            : fmt::format("{} or {}", batch / ranks, batch / ranks + 1);
}

}  // namespace

void check_ranks(const TrainOptions& options, const Checkpoint& from, const RunLength& length,
                 int ranks) {
  if (!options.sharded || from.ranks() == ranks) return;
  check_global_batch(options, from.ranks(), ranks);
  if (from.steps_per_epoch != length.steps_per_epoch)
    refuse_checkpoint(options, fmt::format("with --sharded its epochs have {} steps on {} ranks, "
                                           "and {} on {}: resume on {} ranks",
                                           from.steps_per_epoch, from.ranks(),
                                           length.steps_per_epoch, ranks, from.ranks()));
  const std::int64_t steps = from.step % length.steps_per_epoch;
  if (steps != 0)
    refuse_checkpoint(
        options,
        fmt::format("with --sharded its {} ranks have made {} of {} steps of an epoch with images "
                    "of their own, and {} ranks would lose some and repeat others: resume on {} "
                    "ranks, or from the end of an epoch (--keep-last keeps such checkpoints)",
                    from.ranks(), steps, length.steps_per_epoch, ranks, from.ranks()));
}

Tensor sums_of_rank(const Checkpoint& from, int rank, int ranks) {
  if (from.ranks() == ranks) return from.sums.select(0, rank);
  const Tensor sums = zeros({2}, {.dtype = float64});
  for (int other = rank; other < from.ranks(); other += ranks)
    sums.add_(from.sums.select(0, other));
  return sums;
}

Tensor random_of_rank(const Checkpoint& from, int rank) {
  return from.random.select(0, rank % from.ranks());
}

std::string describe_other_ranks(const TrainOptions& o, const Checkpoint& from, int ranks) {
  const int before = from.ranks();
  if (before == ranks) return {};
  std::string differs = "sums are rounded in another order";
  if (o.sharded) differs += "; the images come in another order";
  if (mixes_images(o)) differs += "; images are mixed with other images";
  if (o.accumulate > 1) differs += "; micro batches hold other images";
  if (!o.sync_bn)
    differs += fmt::format("; batch normalisation sees {} images at a time instead of {}",
                           images_of_a_rank(o.batch_size, ranks),
                           images_of_a_rank(o.batch_size, before));
  else if (o.sync_bn_scope != "world") differs += "; batch statistics are those of other groups";
  return fmt::format("ranks {} -> {}: the global batch of {} images{} What differs: {}", before,
                     ranks, o.batch_size,
                     o.sharded ? " stays." : " and the order of the images stay.", differs);
}

}  // namespace tutti::examples
