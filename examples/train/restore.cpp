#include "restore.h"

#include "early_stop.h"

#include <tutti/core/excerpt.h>

#include <algorithm>
#include <map>

namespace tutti::examples {
namespace {

// Module::load_state_dict converts dtypes. A checkpoint has to have those of the network, or the
// resumed run would not have the same bits.
void check_model(const StateDict& from, const StateDict& own) {
  std::map<std::string, Tensor> expected(own.begin(), own.end());
  for (const auto& [name, tensor] : from) {
    const auto found = expected.find(name);
    if (found == expected.end())
      fail<CheckpointError>("tensor '{}' is unknown to the network, or occurs twice",
                            excerpt("model." + name));
    const Tensor& mine = found->second;
    if (tensor.dtype() != mine.dtype() || !(tensor.shape() == mine.shape()))
      fail<CheckpointError>("tensor 'model.{}' is {} {}, expected {} {}", name,
                            to_string(tensor.dtype()), to_string(tensor.shape()),
                            to_string(mine.dtype()), to_string(mine.shape()));
    expected.erase(found);
  }
  if (!expected.empty())
    fail<CheckpointError>("tensor 'model.{}' is missing", expected.begin()->first);
}

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
    check_model(from.model, net.state_dict());
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

}  // namespace tutti::examples
