// Restores a run from a checkpoint, after the checks of whether this run may go on from it.
// checkpoint.cpp reads and writes the file.
#include "checkpoint.h"

#include "training_step.h"

#include <tutti/core/create.h>

#include <fmt/format.h>

namespace tutti::examples {

void check_length(const TrainOptions& options, const Checkpoint& from, const RunLength& length) {
  if (from.steps_per_epoch != length.steps_per_epoch)
    refuse_checkpoint(options, fmt::format("it is of a run of {} steps in an epoch, this one has "
                                           "{}: other data?",
                                           from.steps_per_epoch, length.steps_per_epoch));
  const bool is_end = from.step == from.steps || from.step % from.steps_per_epoch == 0;
  if (from.step > length.steps || (from.step == length.steps && !is_end))
    refuse_checkpoint(
        options, fmt::format("it has made {} steps of {} in an epoch, and this run would end after "
                             "{}: give more --epochs or --max-steps",
                             from.step, from.steps_per_epoch, length.steps));
}

void restore(const TrainOptions& options, const Checkpoint& from, nn::Module& net,
             Optimization& optimization, optim::ExponentialMovingAverage* ema) {
  try {
    // Module::load_state_dict() converts dtypes, but then a resumed run would not have the same
    // bits.
    check_entries(from.model, net.state_dict(), "model.",
                  [](const Tensor& a, const Tensor& b) { return a.dtype() == b.dtype(); });
    if (ema) ema->check_state_dict(from.ema);
    else if (!from.ema.empty())
      fail<CheckpointError>("it has averaged weights, which only --ema makes");
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

Tensor sums_of_rank(const Checkpoint& from, int rank, int ranks) {
  if (from.ranks() == ranks) return from.sums.select(0, rank);
  const Tensor sums = zeros({LossSums::figures}, {.dtype = float64});
  for (int other = rank; other < from.ranks(); other += ranks)
    sums.add_(from.sums.select(0, other));
  return sums;
}

Tensor random_of_rank(const Checkpoint& from, int rank) {
  return from.random.select(0, rank % from.ranks());
}

}  // namespace tutti::examples
