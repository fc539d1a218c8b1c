// Restores a run from a checkpoint, after the checks of whether this run may go on from it: its
// optimizer, averages, rows and length, and with other ranks its batches and images. checkpoint.cpp
// reads and writes the file.
#include "checkpoint.h"

#include "training_batches.h"
#include "training_step.h"

#include <tutti/core/create.h>
#include <tutti/core/excerpt.h>
#include <tutti/nn/model_card.h>

#include <fmt/format.h>
#include <algorithm>

namespace tutti::examples {

namespace {

// The schedule sets these options of every group in every step; the others never change in a run.
bool is_scheduled(const std::string& key) {
  return key.ends_with(".lr") || key.ends_with(".momentum");
}

void check_optimizer_options(const Metadata& from, const Metadata& own) {
  for (const auto& [key, expected] : own)
    if (!from.contains(key)) fail<CheckpointError>("its metadata have no 'optimizer.{}'", key);
  for (const auto& [key, value] : from) {
    const auto found = own.find(key);
    if (found == own.end())
      fail<CheckpointError>("metadata '{}' do not belong there", excerpt("optimizer." + key));
    if (value != found->second && !is_scheduled(key))
      fail<CheckpointError>("its metadata have '{}' as 'optimizer.{}', expected '{}'",
                            excerpt(value), key, found->second);
  }
}

void check_averages(const StateDict& from, const optim::ExponentialMovingAverage* ema) {
  if (ema) return ema->check_state_dict(from);
  if (!from.empty()) fail<CheckpointError>("it has averaged weights, which only --ema makes");
}

void check_same_length(const TrainOptions& options, const Checkpoint& from,
                       const RunLength& length) {
  if (from.steps_per_epoch != length.steps_per_epoch)
    refuse_checkpoint(options, fmt::format("it is of a run of {} steps in an epoch, this one has "
                                           "{}: other data?",
                                           from.steps_per_epoch, length.steps_per_epoch));
  const bool has_new_length =
      std::ranges::any_of(changed_options(options, from.options), [](const ChangedOption& option) {
        return option.name == "epochs" || option.name == "max_steps";
      });
  if (from.steps != length.steps && !has_new_length)
    refuse_checkpoint(
        options, fmt::format("it is of a run of {} steps, this one has {}: other data?", from.steps,
                             length.steps));
}

// The end of an epoch and of the run has test results. So may have other rows, with which the run
// once ended before it was given more steps.
void check_rows(const TrainOptions& options, const Checkpoint& from) {
  std::int64_t epochs = 0;
  for (const Metrics& row : from.rows) {
    const std::int64_t epoch = (row.step - 1) / from.steps_per_epoch + 1;
    const bool is_last = row.step % from.steps_per_epoch == 0 || row.step == from.steps;
    if (row.epoch != epoch || (is_last && !row.test_accuracy))
      refuse_checkpoint(
          options, fmt::format("tensor 'rows': the row of step {} is of epoch {}, {} test results, "
                               "expected epoch {}{}",
                               row.step, row.epoch, row.test_accuracy ? "with" : "without", epoch,
                               is_last ? ", with" : ""));
    if (is_last) ++epochs;
  }
  const std::int64_t begun = (from.step + from.steps_per_epoch - 1) / from.steps_per_epoch,
                     ended = from.step == from.steps ? begun : from.step / from.steps_per_epoch;
  // A checkpoint is saved before the last epoch is tested, too.
  const bool ends_epoch = begun == ended;
  const std::int64_t tested = is_tested(from.rows, from.step) || !ends_epoch ? ended : ended - 1;
  if (epochs != std::max<std::int64_t>(tested, 0))
    refuse_checkpoint(options, fmt::format("tensor 'rows' has the last rows of {} epochs, expected "
                                           "those of {} after step {}",
                                           epochs, tested, from.step));
}

// Checks that the run is meant to go on from where the checkpoint is, or has ended there.
void check_end(const TrainOptions& options, const Checkpoint& from, const RunLength& length) {
  const bool is_end = from.step == from.steps || from.step % from.steps_per_epoch == 0;
  if (from.step > length.steps || (from.step == length.steps && !is_end))
    refuse_checkpoint(
        options, fmt::format("it has made {} steps of {} in an epoch, and this run would end after "
                             "{}: give more --epochs or --max-steps",
                             from.step, from.steps_per_epoch, length.steps));
  const double patience = std::clamp(option_before(from.options, "patience"), 0.0, 1e15);
  if (options.patience == 0 && from.step < from.steps && is_tested(from.rows, from.step) &&
      is_out_of_patience(from.rows, static_cast<std::int64_t>(patience)))
    refuse_checkpoint(options, fmt::format("its run stopped early with --patience {0}: give "
                                           "--patience {0} to keep its end, or a greater one to "
                                           "train on",
                                           patience));
}

}  // namespace

void check_length(const TrainOptions& options, const Checkpoint& from, const RunLength& length) {
  check_same_length(options, from, length);
  check_rows(options, from);
  check_end(options, from, length);
}

void restore(const TrainOptions& options, const Checkpoint& from, nn::Module& net,
             Optimization& optimization, optim::ExponentialMovingAverage* ema) {
  try {
    // Module::load_state_dict() converts dtypes, but then a resumed run would not have the same
    // bits.
    check_entries(from.model, net.state_dict(), "model.",
                  [](const Tensor& a, const Tensor& b) { return a.dtype() == b.dtype(); });
    check_optimizer_options(from.optimizer.metadata, optimization.optimizer_state().metadata);
    check_averages(from.ema, ema);
    if (const std::string name = tensor_not_finite(from); !name.empty())
      fail<CheckpointError>("tensor '{}' has numbers that are not finite", name);
    optimization.restore(from);
  } catch (const CheckpointError& error) {
    refuse_checkpoint(options, error.what());
  }
  net.load_state_dict(from.model);  // it fits, as was checked, and so do the averages
  if (ema) ema->load_state_dict(from.ema);
}

// ---- other ranks

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
