// A training run, from top to bottom: its loop, its set-up, its steps, what the end of an epoch
// computes and writes, and how it is saved and continued.
#include "trainer.h"

#include "../report/run_report.h"
#include "checkpoint.h"
#include "evaluation.h"
#include "network.h"
#include "run_folder.h"
#include "training_batches.h"
#include "training_step.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/cuda/settings.h>
#include <tutti/core/parallel.h>
#include <tutti/core/random.h>
#include <tutti/core/trace.h>
#include <tutti/distributed/broadcast_text.h>
#include <tutti/distributed/run_state.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/pool_statistics.h>
#include <tutti/nn/batch_norm/recompute_statistics.h>

#include <algorithm>
#include <cmath>

namespace tutti::examples {

namespace {

void choose_how_to_compute(const TrainOptions& options, const ProcessGroup& group) {
  set_num_threads(options.threads > 0 ? options.threads : threads_of_rank(group));
  cuda::settings().allow_tf32 = options.allow_tf32;
  cuda::settings().autotune = options.autotune;
}

}  // namespace

// [snippet]
TrainResult train(const TrainOptions& options, const TrainingData& data, const ProcessGroup& group,
                  std::FILE* screen, const StopRequest* stop) {
  choose_how_to_compute(options, group);
  TrainingRun run(options, data, group, screen, stop);
  run.begin();
  for (;;) {
    if (run.has_untested_epoch()) {
      run.evaluate_epoch();
      run.save_checkpoint();
      if (run.is_stopped()) return run.finish_early();
    }
    if (run.is_done()) return run.finish();
    if (!run.train_epoch()) return run.finish_early();
    run.save_checkpoint();  // so that an evaluation that fails loses no training
  }
}
// [/snippet]

LossAndAccuracy test_weights(const TrainOptions& options, const TrainingData& data,
                             const ProcessGroup& group, std::FILE* screen) {
  choose_how_to_compute(options, group);
  return TrainingRun(options, data, group, screen, nullptr).test();
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t shown_predictions = 12;  // of each kind, in the report

// ---- set up

// Returns what rank 0 finds in the run folder, on every rank.
std::optional<Checkpoint> find_checkpoint(const TrainOptions& o, const ProcessGroup& group) {
  if (!o.resume) return {};
  std::optional<Checkpoint> found;
  const auto load = [&] {
    if (group.rank() == 0) found = load_checkpoint(o);
  };
  distributed::call_on_all_ranks(group, "checkpoint", load, exit_code_of);
  return broadcast_checkpoint(found, group);
}

// Returns the network that the run begins with, and the line about the file of its weights. Only
// rank 0 has the values of the file; DataParallel copies them to the other ranks. `resumes`: a
// checkpoint replaces all values later.
std::shared_ptr<nn::Layer> make_net(const TrainOptions& o, const TrainingData& data,
                                    const ProcessGroup& group, Device device, bool resumes,
                                    std::string& weights_line) {
  manual_seed(o.seed);
  auto net = make_network(o, data);
  net->to(device, storage_dtype(o), o.memory_format);
  if (o.sync_bn) nn::convert_sync_batchnorm(*net, statistics_group(o, group));
  if (o.recompute_output) nn::set_recompute_output(*net);
  if (resumes && !o.weights.empty())
    weights_line = fmt::format("the run goes on from its checkpoint: {} is not read", o.weights);
  else if (!o.weights.empty() || o.test_only)
    weights_line = load_weights_on_rank_0(o, data, group, *net);
  freeze_layers(o, *net);
  return net;
}

// Returns the batches on which batch normalisation is examined; null where nobody asked for it.
std::unique_ptr<StatisticsBatches> statistics_batches(const TrainOptions& o,
                                                      const TrainingData& data,
                                                      const ProcessGroup& group, Device device) {
  const std::int64_t count = statistics_options(o).max_steps;
  if (count == 0) return {};
  return std::make_unique<StatisticsBatches>(
      data.train, statistics_loader_options(o, data, group, device), count, group, device);
}

// Returns a length that is the same on every rank. Ranks that have shards may have different
// numbers of batches: the most of them count, or the fewest where all stop with the first.
RunLength find_length(const TrainOptions& o, const TrainingBatches& training,
                      const ProcessGroup& group) {
  using distributed::ReduceOp;
  const Tensor batches =
      full({}, static_cast<double>(training.batches_per_epoch()), {.dtype = int64});
  const bool stop = o.uneven == distributed::Uneven::stop;
  group.all_reduce(batches, stop ? ReduceOp::min : ReduceOp::max, {.name = "steps per epoch"})
      .wait();
  const auto steps_per_epoch = batches.item<std::int64_t>();
  if (steps_per_epoch < 1)  // the same on every rank
    fail<DataError>("there are no training images{}", stop && o.sharded && group.size() > 1
                                                          ? " on some rank, with which --uneven "
                                                            "stop ends an epoch on all of them"
                                                          : "");
  return run_length(o, steps_per_epoch);
}

// Returns why steps are not captured as a CUDA graph; empty if they are.
std::string why_no_graph(const TrainOptions& o, const ProcessGroup& group, Device device) {
  if (device.is_cpu()) return "needs --device cuda";
  if (group.size() > 1 && !group.capabilities().graph_capture)
    return fmt::format("the ranks' group ({}) passes CUDA tensors through the host",
                       group.backend());
  return o.sharded ? "with --sharded the batches of the ranks change independently of each other"
                   : "";
}

std::optional<Device> device_of_graph(const TrainOptions& o, const ProcessGroup& group,
                                      Device device) {
  return o.cuda_graph && why_no_graph(o, group, device).empty() ? std::optional(device)
                                                                : std::nullopt;
}

// Returns the dtype of convolutions and, on CUDA, the settings that a comparison of runs must know.
std::string precision_line(const TrainOptions& o) {
  if (o.device.is_cpu()) return to_string(o.precision);
  return fmt::format("{} (TF32 {}, autotune {})", to_string(o.precision),
                     o.allow_tf32 ? "allowed" : "off", o.autotune ? "on" : "off");
}

}  // namespace

TrainingRun::TrainingRun(const TrainOptions& options, const TrainingData& data,
                         const ProcessGroup& group, std::FILE* screen, const StopRequest* stop)
    : options_(options),
      data_(data),
      group_(group),
      device_(device_of_rank(options, group.local_rank())),
      described_data_(group.rank() == 0 && !options.out.empty() ? describe_data(options, data)
                                                                : Metadata()),
      checkpoint_(find_checkpoint(options, group)),
      net_(make_net(options, data, group, device_, checkpoint_.has_value(), weights_line_)),
      data_parallel_(net_->named_parameters(), net_->named_buffers(), group),
      batches_(options, data, group, device_),
      test_loader_(data.test, test_loader_options(options, data, group, device_)),
      statistics_batches_(statistics_batches(options, data, group, device_)),
      length_(find_length(options, batches_, group)),
      optimization_(trained_parameters(*net_), options, length_, trained_in_backbone(*net_)),
      log_(options, group.rank() == 0, screen, length_, checkpoint_ ? checkpoint_->step : 0),
      straggler_monitor_(group),
      stop_(group, stop),
      step_timer_([this] { return straggler_monitor_.waited_seconds(); }),
      sums_(device_),
      training_step_({.options = options,
                      .net = *net_,
                      .data_parallel = data_parallel_,
                      .optimization = optimization_,
                      .sums = sums_,
                      .timer = step_timer_}),
      captured_step_(
          [this](const std::vector<Tensor>& in, std::int64_t global_size) {
            training_step_.run({.images = in[0],
                                .labels = in[1],
                                .soft_labels = in[2],
                                .global_size = global_size});
          },
          device_of_graph(options, group, device_),
          [this](const std::string& line) { log_.say(line); }),
      test_recorder_(data.classes, shown_predictions) {
  if (const double decay = options.optimizer.ema; decay > 0)
    ema_.emplace(net_->named_parameters(), net_->named_buffers(), decay);
  if (size_of(options.precision) == 2) autocast_.emplace(options.precision);
  log_.say(headline());
  if (!weights_line_.empty()) log_.say(weights_line_);
  if (const std::string why = options.cuda_graph ? why_no_graph(options, group, device_) : "";
      !why.empty())
    log_.say("cuda graph: none, steps run as they are: " + why);
}

std::string TrainingRun::headline() const {
  const auto plural = [](int n) { return n > 1 ? "s" : ""; };
  std::int64_t others = 0;
  for (const auto& folder : data_.folders) others += folder->other_files();
  return fmt::format(
      "{} ({}) on {}: {} training{} and {} test images{}, {} rank{} ({}) of {}, "
      "global batch {}, {}, {}",
      options_.model, describe_parameters(*net_), options_.dataset, data_.train->size(),
      options_.sharded ? " (of rank 0)" : "", data_.test->size(),
      others > 0 ? fmt::format(" ({} other files)", others) : "", group_.size(),
      plural(group_.size()), group_.backend(), describe_threads(), options_.batch_size,
      precision_line(options_),
      !options_.sync_bn                   ? "BatchNorm of each rank"
      : options_.sync_bn_scope == "world" ? "SyncBatchNorm"
      : options_.sync_bn_scope == "host"  ? "SyncBatchNorm in each host"
                                         : "SyncBatchNorm of " + options_.sync_bn_scope + " ranks");
}

bool TrainingRun::has_untested_epoch() const {
  const bool ends_epoch = step_ % length_.steps_per_epoch == 0 || step_ == length_.steps;
  return step_ > 0 && ends_epoch && !is_tested(log_.rows(), step_);
}

bool TrainingRun::train_epoch() {
  const StepTimer::Scope scope(step_timer_, StepPart::other);
  for (;;) {
    const data::Batch batch = load_batch();
    stop_.begin_step(can_go_on());
    train_step(batch);
    stop_.end_step();
    const bool ends_epoch = step_ % length_.steps_per_epoch == 0;
    if (ends_epoch || is_done()) {
      end_row();
      return true;
    }
    if (step_ % options_.log_every == 0) {
      end_row();
      log_.add_row(next_row());
      start_row();
    }
    const bool saves = options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0;
    if (saves || is_stopped()) save_checkpoint();
    if (is_stopped()) return false;
    log_.show_step(row_);
  }
}

void TrainingRun::train_step(const data::Batch& batch) {
  const trace::Span span([&] { return fmt::format("step {}", step_ + 1); });
  captured_step_.run({batch.images, batch.labels, batch.soft_labels}, batch.global_size);
  step_timer_.count_step();
  sums_.count(batch.global_size * labels_per_image(options_));
  row_.epoch = step_ / length_.steps_per_epoch + 1;
  row_.step = ++step_;
  optimization_.advance_schedule();
  row_.learning_rate = optimization_.last_learning_rate();
  update_averages();
}

data::DataLoader::State TrainingRun::position_of(std::int64_t step) const {
  return {.epoch = step / length_.steps_per_epoch, .batch = step % length_.steps_per_epoch};
}

// Waits for the images of the step after this one. The first step of an epoch needs no look ahead:
// a checkpoint has just been saved where it fails.
bool TrainingRun::can_go_on() {
  const StepTimer::Scope scope(step_timer_, StepPart::load);
  const auto next = position_of(step_ + 1);
  return !stop_.can_agree() || next.batch == 0 || step_ + 1 == length_.steps ||
         batches_.look_ahead(next);
}

data::Batch TrainingRun::load_batch() {
  const StepTimer::Scope scope(step_timer_, StepPart::load);
  return batches_.load(position_of(step_));
}

// Takes the weights of this step into their averages. While the learning rate warms up, the weights
// change too fast for an average, which begins anew in every step.
void TrainingRun::update_averages() {
  if (!ema_) return;
  const StepTimer::Scope scope(step_timer_, StepPart::optimizer);
  if (step_ <= warmup_steps(options_.schedule, length_)) ema_->restart();
  ema_->update();
}

// Begins the time of a row of metrics.
void TrainingRun::start_row() {
  row_start_ = Clock::now();
  waited_before_row_ = batches_.waited();
  samples_before_row_ = sums_.samples();  // those of another process, in a resumed run
}

// Takes the time of the row that ends. In a run that is resumed behind the row's last step it stays
// 0.
void TrainingRun::end_row() {
  const auto samples =
      static_cast<double>((sums_.samples() - samples_before_row_) / labels_per_image(options_));
  const std::chrono::duration<double> time = Clock::now() - row_start_,
                                      waited = batches_.waited() - waited_before_row_;
  row_.images_per_second = samples / time.count();
  row_.data_waiting = std::clamp(waited / time, 0.0, 1.0);
}

// Returns the training figures since the last row. This call is collective.
Metrics TrainingRun::next_row() {
  const LossAndAccuracy means = sums_.take(group_);
  row_.train_loss = means.loss;
  row_.train_accuracy = means.accuracy;
  expect_finite(row_.train_loss, "the loss is");
  return row_;
}

void TrainingRun::expect_finite(double value, const std::string& what) const {
  if (!std::isfinite(value))
    fail<Error>("{} not finite at step {}; try a smaller --lr than {}", what, row_.step,
                options_.optimizer.lr);
}

// Gives all ranks the same running statistics, which are evaluated and saved: those of all groups
// together where groups of ranks share theirs, and rank 0's where plain batch norm has those of
// each rank. This call is collective.
void TrainingRun::share_buffers() {
  if (options_.sync_bn && options_.sync_bn_scope == "world") return;
  const auto share = [this] {
    if (options_.sync_bn) nn::pool_statistics(*net_, group_);
    else data_parallel_.broadcast_buffers();
  };
  share();
  if (!ema_) return;
  const optim::ExponentialMovingAverage::Exchange exchange(*ema_);
  share();
}

// ---- the end of an epoch and of the run

// Examines the layers of the weights that are tested, before their statistics are recomputed.
void TrainingRun::check_batch_norm() {
  std::optional<optim::ExponentialMovingAverage::Exchange> exchange;
  if (ema_) exchange.emplace(*ema_);
  batch_norm_check_ = examples::check_batch_norm(
      *net_, [this] { statistics_batches_->run(*net_, row_.epoch); },
      [this] { return evaluate_net(false); }, group_);
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

LossAndAccuracy TrainingRun::evaluate_net(bool records) {
  if (options_.task == Task::classification)
    return evaluate(*net_, test_loader_, group_, device_, records ? &test_recorder_ : nullptr);
  return evaluate_pixels(*net_, test_loader_, data_.classes, group_, device_,
                         records ? &pixels_ : nullptr);
}

// Tests these weights.
LossAndAccuracy TrainingRun::test_weights() {
  std::optional<optim::ExponentialMovingAverage::Exchange> exchange;
  if (ema_) exchange.emplace(*ema_);
  if (options_.recompute_statistics > 0) recompute_statistics();
  return evaluate_net(true);
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
  const LossAndAccuracy result = evaluate_net(false);
  say_replaced_files();
  log_.say(fmt::format("test loss {:.4f}  {} {:.4f}  on {} images", result.loss,
                       score_name(options_), result.accuracy, data_.test->size()));
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
                       best ? fmt::format("better {} than {:.4f} of epoch {}", score_name(options_),
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
  metadata[score_key(options_)] = fmt::format("{}", tested.test_accuracy.value_or(0));
  return metadata;
}

// Writes the page of the run folder. This call is collective.
void TrainingRun::write_report() {
  TestDetails test = options_.task == Task::segmentation ? pixels_ : test_recorder_.take(group_);
  std::vector<StepTimes> step_times = step_timer_.take(group_);
  if (!log_.has_folder()) return;
  log_.write_report(to_html({.options = options_,
                             .data = data_,
                             .group = group_,
                             .device = device_,
                             .length = length_,
                             .rows = log_.rows(),
                             .headline = headline(),
                             .test = std::move(test),
                             .step_times = std::move(step_times),
                             .batch_norm = std::exchange(batch_norm_check_, {})}));
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
  log_.say(fmt::format("{} {:.4f}", score_name(options_), result.test_accuracy));
  return result;
}

TrainResult TrainingRun::finish_early() {
  say_replaced_files();
  const std::string why = stop_.is_error() ? "images that cannot be loaded"
                                           : distributed::signal_name(stop_.signal());
  log_.say(fmt::format("{}: stopped after step {} of {}, {}", why, step_, length_.steps,
                       options_.out.empty() ? "without a run folder for a checkpoint"
                                            : "with a checkpoint in " + checkpoint_path(options_)));
  if (stop_.is_error()) throw_load_error();
  return {.rows = log_.rows(), .state = tested_weights(), .is_stopped = true};
}

// Throws the error of the lowest rank that has one on every rank. This call is collective.
void TrainingRun::throw_load_error() const {
  try {
    distributed::call_on_all_ranks(
        group_, "load error",
        [this] {
          if (batches_.error()) std::rethrow_exception(batches_.error());
        },
        exit_code_of);
  } catch (const ErrorOnAllRanks& error) {
    const std::string rank = group_.size() == 1 ? "" : fmt::format("rank {}: ", error.rank());
    throw ErrorOnAllRanks(rank + error.what() + advice_on_broken_files(options_.task), error.rank(),
                          error.code());
  }
}

// ---- checkpoints

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
  const auto load = [&] {
    check_ranks(options_, from, length_, group_.size());
    check_length(options_, from, length_);
    if (!difference.empty()) refuse_checkpoint(options_, difference);
    restore(options_, from, *net_, optimization_, ema_ ? &*ema_ : nullptr);
  };
  distributed::call_on_all_ranks(group_, "checkpoint", load, exit_code_of);
  step_ = from.step;
  if (!from.rows.empty()) row_ = from.rows.back();
  row_.test_loss = row_.test_accuracy = {};
  row_.images_per_second = row_.data_waiting = 0;
  row_.step = step_;
  row_.epoch = (step_ + length_.steps_per_epoch - 1) / length_.steps_per_epoch;
  row_.learning_rate = optimization_.last_learning_rate();
  sums_.restore(sums_of_rank(from, group_.rank(), group_.size()), from.samples);
  distributed::set_generator(random_of_rank(from, group_.rank()));
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
  const Tensor random = distributed::gather_generators(group_),
               sums = gather_from_ranks(sums_.sums(), group_, "checkpoint");
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
