// What a run computes and writes beside its steps: tests, the page, kept weights, and its end.
#include "training_run.h"

#include "checkpoint.h"
#include "dataset.h"
#include "epoch_report.h"
#include "evaluation.h"
#include "metrics.h"
#include "trainer.h"

#include <tutti/core/create.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/recompute_statistics.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tutti::examples {

// Examines the layers of the weights that are tested, before their statistics are recomputed.
void TrainingRun::check_batch_norm() {
  std::optional<optim::ExponentialMovingAverage::Exchange> exchange;
  if (ema_) exchange.emplace(*ema_);
  batch_norm_check_ = examples::check_batch_norm(
      *net_, [this] { statistics_batches_->run(*net_, row_.epoch); },
      [this] { return evaluate(*net_, test_loader_, group_, device_); }, group_);
  batch_norm_check_->batches = statistics_batches_->count();
  log_.say(to_string(*batch_norm_check_));
}

// Sets statistics that are the same on all ranks.
void TrainingRun::recompute_statistics() {
  nn::recompute_statistics(
      *net_, [this] { statistics_batches_->run(*net_, row_.epoch); }, group_);
}

// Returns the weights that are tested and saved: the averages, if there are any.
StateDict TrainingRun::tested_weights() {
  if (!ema_) return net_->state_dict();
  const optim::ExponentialMovingAverage::Exchange exchange(*ema_);
  StateDict weights = net_->state_dict();
  for (auto& [name, tensor] : weights) tensor = tensor.clone();
  return weights;
}

// Tests these weights.
LossAndAccuracy TrainingRun::test_weights() {
  std::optional<optim::ExponentialMovingAverage::Exchange> exchange;
  if (ema_) exchange.emplace(*ema_);
  if (options_.recompute_statistics > 0) recompute_statistics();
  return evaluate(*net_, test_loader_, group_, device_, &test_recorder_);
}

void TrainingRun::evaluate_epoch() {
  Metrics row = next_row();
  nn::check_batch_statistics(*net_);
  share_buffers();
  if (options_.bn_report) check_batch_norm();
  const LossAndAccuracy test = test_weights();
  optimization_.end_epoch(test.loss);
  // No loss is worse than infinity. A table of metrics has NaN for rows without a test.
  row.test_loss = std::isnan(test.loss) ? INFINITY : test.loss;
  row.test_accuracy = test.accuracy;
  if (group_.size() > 1) row.stragglers = straggler_monitor_.report();
  log_.add_epoch(row);
  write_report();
  keep_best();
  stop_early();
  start_row();
}

LossAndAccuracy TrainingRun::test() {
  const LossAndAccuracy result = evaluate(*net_, test_loader_, group_, device_);
  say_replaced_files();
  log_.say(fmt::format("test loss {:.4f}  test accuracy {:.4f}  on {} images", result.loss,
                       result.accuracy, data_.test->size()));
  return result;
}

// Ends the run where the epochs so far, also those before a resume, have used up the patience.
void TrainingRun::stop_early() {
  const std::vector<Metrics>& rows = log_.rows();
  if (!is_tested(rows, step_) || step_ == length_.steps) return;
  is_stopped_early_ = is_out_of_patience(rows, options_.patience);
  if (!is_stopped_early_) return;
  const Metrics* const best = best_row(rows);
  log_.say(fmt::format("stopped early after epoch {} of {}: no {} (--patience {})",
                       rows.back().epoch, length_.epochs,
                       best ? fmt::format("better test accuracy than {:.4f} of epoch {}",
                                          *best->test_accuracy, best->epoch)
                            : "test has had a finite loss",
                       options_.patience));
}

void TrainingRun::keep_best() {
  if (options_.keep_best && log_.has_folder())
    examples::keep_best(options_, log_.rows(), tested_weights(), weights_metadata());
}

// Returns what a file says about the weights that were tested last.
Metadata TrainingRun::weights_metadata() const {
  const Metrics& tested = log_.rows().back();
  Metadata metadata = model_card(options_, data_).to_metadata();
  metadata["dataset"] = options_.dataset;
  metadata["epoch"] = std::to_string(tested.epoch);
  metadata["step"] = std::to_string(tested.step);
  metadata["test_accuracy"] = fmt::format("{}", tested.test_accuracy.value_or(0));
  return metadata;
}

// Writes the page of the run folder. This call is collective.
void TrainingRun::write_report() {
  TestDetails test = test_recorder_.take(group_);
  std::vector<StepTimes> step_times = step_timer_.take(group_);
  if (!log_.has_folder()) return;
  RunReport report = make_report({.options = options_,
                                  .data = data_,
                                  .group = group_,
                                  .device = device_,
                                  .length = length_,
                                  .rows = log_.rows(),
                                  .headline = headline()},
                                 std::move(test), std::move(step_times));
  report.batch_norm = std::exchange(batch_norm_check_, {});
  log_.write_report(to_html(report));
}

// Names the files that could not be decoded. This call is collective.
void TrainingRun::say_replaced_files() {
  if (options_.broken_files == data::BrokenFiles::fatal) return;
  constexpr std::size_t most = 20;
  const auto files = replaced_files(data_, group_);
  if (files.empty()) return;
  std::string text = fmt::format("{} broken file{} replaced by the next one:", files.size(),
                                 files.size() > 1 ? "s were each" : " was");
  for (std::size_t i = 0; i < std::min(files.size(), most); ++i) text += "\n  " + files[i].reason;
  if (files.size() > most) text += fmt::format("\n  and {} more", files.size() - most);
  log_.say(text);
}

TrainResult TrainingRun::finish() {
  TrainResult result{.rows = log_.rows(), .state = tested_weights()};
  result.test_accuracy = result.rows.back().test_accuracy.value_or(0);
  log_.save_weights(result.state, weights_metadata());
  if (options_.keep_best && log_.has_folder()) log_.say(describe_best(options_));
  if (ema_)
    log_.say(
        fmt::format("the weights are averages over the steps (--ema {})", options_.optimizer.ema));
  say_replaced_files();
  if (const std::string line = straggler_summary(result.rows); !line.empty()) log_.say(line);
  log_.say(fmt::format("test accuracy {:.4f}", result.test_accuracy));
  return result;
}

TrainResult TrainingRun::finish_early() {
  say_replaced_files();
  const std::string why = stop_.is_load_error() ? "images that cannot be loaded"
                                                : signal_name(stop_.signal());
  log_.say(fmt::format("{}: stopped after step {} of {}, {}", why, step_, length_.steps,
                       options_.out.empty() ? "without a run folder for a checkpoint"
                                            : "with a checkpoint in " + checkpoint_path(options_)));
  if (stop_.is_load_error()) throw_load_error();
  return {.rows = log_.rows(), .state = tested_weights(), .is_stopped = true};
}

// Throws the error of the lowest rank that has one, with the same text on every rank. This call is
// collective.
void TrainingRun::throw_load_error() const {
  constexpr std::int64_t most = 1000;  // the text's bytes, behind one for the exit code
  const Tensor mine = zeros({most}, {.dtype = uint8}),
               all = empty({group_.size(), most}, {.dtype = uint8});
  try {
    if (batches_.error()) std::rethrow_exception(batches_.error());
  } catch (const std::exception& error) {
    char* const text = static_cast<char*>(mine.raw());
    text[0] = static_cast<char>(exit_code_of(error));
    std::strncpy(text + 1, error.what(), most - 2);
  }
  group_.all_gather(mine, all, {.name = "load error"}).wait();
  const char* found = static_cast<const char*>(all.raw());
  int rank = 0;
  for (; *found == exit_success; found += most) ++rank;
  throw LoadErrorOnAllRanks(
      fmt::format("{}{}", group_.size() > 1 ? fmt::format("rank {}: ", rank) : "", found + 1),
      *found);
}

}  // namespace tutti::examples
