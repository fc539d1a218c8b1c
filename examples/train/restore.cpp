#include "restore.h"

#include <tutti/core/excerpt.h>

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

}  // namespace

void check_length(const TrainOptions& options, const Checkpoint& from, const RunLength& length) {
  if (from.steps != length.steps)
    refuse_checkpoint(
        options, fmt::format("it is of a run of {} steps, this one has {}: other data?", from.steps,
                             length.steps));
  std::int64_t epochs = 0;
  for (const Metrics& row : from.rows) {
    const std::int64_t epoch = (row.step - 1) / length.steps_per_epoch + 1;
    const bool is_last = row.step % length.steps_per_epoch == 0 || row.step == length.steps;
    if (row.epoch != epoch || row.test_accuracy.has_value() != is_last)
      refuse_checkpoint(
          options, fmt::format("tensor 'rows': the row of step {} is of epoch {}, {} test results, "
                               "expected epoch {}, {}",
                               row.step, row.epoch, row.test_accuracy ? "with" : "without", epoch,
                               is_last ? "with" : "without"));
    if (is_last) ++epochs;
  }
  const std::int64_t begun = (from.step + length.steps_per_epoch - 1) / length.steps_per_epoch,
                     ended = from.step == length.steps ? begun : from.step / length.steps_per_epoch;
  if (epochs != ended)
    refuse_checkpoint(options, fmt::format("tensor 'rows' has the last rows of {} epochs, expected "
                                           "those of {} after step {}",
                                           epochs, ended, from.step));
}

void restore(const TrainOptions& options, const Checkpoint& from, nn::Module& net,
             Optimization& optimization, optim::ExponentialMovingAverage* ema) {
  try {
    check_model(from.model, net.state_dict());
    check_optimizer_options(from.optimizer.metadata, optimization.optimizer_state().metadata);
    check_averages(from.ema, ema);
    optimization.restore(from);
  } catch (const CheckpointError& error) {
    refuse_checkpoint(options, error.what());
  }
  net.load_state_dict(from.model);  // it fits, as was checked, and so do the averages
  if (ema) ema->load_state_dict(from.ema);
}

}  // namespace tutti::examples
