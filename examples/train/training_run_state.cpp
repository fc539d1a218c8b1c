// How a run is saved and continued: what TrainingRun puts into a checkpoint, and takes from one.
#include "training_run.h"

#include "checkpoint.h"
#include "dataset.h"
#include "metrics.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/core/random.h>
#include <tutti/distributed/broadcast_text.h>

#include <cmath>

namespace tutti::examples {
namespace {

// ---- random numbers and sums in a checkpoint: one row for each rank

Tensor random_state() {
  const Generator::State state = default_generator().state();
  const Tensor numbers = empty({2}, {.dtype = int64});
  numbers.data<std::int64_t>()[0] = static_cast<std::int64_t>(state.seed);
  numbers.data<std::int64_t>()[1] = static_cast<std::int64_t>(state.position);
  return numbers;
}

void set_random_state(const Tensor& numbers) {
  default_generator().set_state({static_cast<std::uint64_t>(numbers.data<std::int64_t>()[0]),
                                 static_cast<std::uint64_t>(numbers.data<std::int64_t>()[1])});
}

Tensor gather_rows(const Tensor& mine, const ProcessGroup& group) {
  const Tensor all = empty({group.size(), mine.size(0)}, {.dtype = mine.dtype()});
  group.all_gather(mine, all, {.name = "checkpoint"}).wait();
  return all;
}

// Calls `restore` on every rank. Where it refuses the checkpoint on all of them, they learn of it
// together: a rank that ended earlier would break the others' collectives.
template <class Restore>
void restore_on_all(const ProcessGroup& group, const Restore& restore) {
  std::optional<CheckpointError> refusal;
  try {
    restore();
  } catch (const CheckpointError& error) {
    refusal = error;
  }
  const Tensor refusals = full({}, refusal.has_value(), {.dtype = int64});
  group.all_reduce(refusals, distributed::ReduceOp::sum, {.name = "checkpoint"}).wait();
  if (refusals.item<int>() == group.size()) throw RefusedOnAllRanks(refusal->what());
  if (refusal) throw *refusal;
}

}  // namespace

void TrainingRun::begin() {
  if (checkpoint_) continue_from(*checkpoint_);
  else if (options_.resume) log_.say("no checkpoint yet: from the beginning");
  log_.open(checkpoint_ ? std::move(checkpoint_->rows) : std::vector<Metrics>());
  checkpoint_.reset();
  stop_early();
  start_row();
}

void TrainingRun::continue_from(const Checkpoint& from) {
  const std::string difference = distributed::broadcast_text(
      group_, group_.rank() == 0 ? other_data(options_, from, described_data_) : "", "data");
  restore_on_all(group_, [&] {
    check_ranks(options_, from, length_, group_.size());
    check_length(options_, from, length_);
    if (!difference.empty()) refuse_checkpoint(options_, difference);
    restore(options_, from, *net_, optimization_, ema_ ? &*ema_ : nullptr);
  });
  step_ = from.step;
  if (!from.rows.empty()) row_ = from.rows.back();
  row_.test_loss = row_.test_accuracy = {};
  row_.images_per_second = row_.data_waiting = 0;
  row_.step = step_;
  row_.epoch = (step_ + length_.steps_per_epoch - 1) / length_.steps_per_epoch;
  row_.learning_rate = optimization_.last_learning_rate();
  sums_.restore(sums_of_rank(from, group_.rank(), group_.size()), from.samples);
  set_random_state(random_of_rank(from, group_.rank()));
  log_.say(fmt::format("going on after step {} of {}", step_, length_.steps));
  if (from.data.empty() && !described_data_.empty())
    log_.say("its checkpoint does not say of which classes and images it is: not compared");
  if (const std::string ranks = describe_other_ranks(options_, from, group_.size()); !ranks.empty())
    log_.say(ranks);
  for (const ChangedOption& option : changed_options(options_, from.options))
    log_.say(fmt::format("{} {} -> {}", option.name, option.before, option.now));
}

void TrainingRun::save_checkpoint() {
  share_buffers();
  const Tensor random = gather_rows(random_state(), group_),
               sums = gather_rows(sums_.sums(), group_);
  const Checkpoint checkpoint{.step = step_,
                              .steps = length_.steps,
                              .steps_per_epoch = length_.steps_per_epoch,
                              .model = net_->state_dict(),
                              .optimizer = optimization_.optimizer_state(),
                              .scaler = optimization_.scaler_state(),
                              .plateau = optimization_.plateau_state(),
                              .ema = ema_ ? ema_->state_dict() : StateDict(),
                              .random = random,
                              .sums = sums,
                              .samples = sums_.samples(),
                              .rows = log_.rows(),
                              .data = described_data_};
  // Weights that are ruined must not replace the last good ones. All ranks throw alike.
  expect_finite(sum(sums.select(1, 0)).item<double>(), "the loss is");
  const std::string ruined = distributed::broadcast_text(
      group_, group_.rank() == 0 ? tensor_not_finite(checkpoint) : "", "ruined tensor");
  if (!ruined.empty()) expect_finite(NAN, fmt::format("'{}' is", ruined));
  if (!log_.has_folder()) return;
  examples::save_checkpoint(options_, checkpoint);
  if (options_.keep_last > 0 && is_tested(log_.rows(), step_))
    keep_checkpoint(options_, checkpoint, log_.rows().back().epoch);
}

}  // namespace tutti::examples
