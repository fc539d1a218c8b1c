// A training run, from top to bottom: its loop, its set-up, its steps, what the end of an epoch
// computes and writes, and how it is saved and continued.
#include "trainer.h"

#include "../report/run_report.h"
#include "checkpoint.h"
#include "evaluation.h"
#include "network.h"
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
  const int share = threads_of_rank(group);  // collective, and --threads may be one rank's alone
  set_num_threads(options.threads > 0 ? options.threads : share);
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

// Returns the network that the run begins with. Only rank 0 has the values of the file of its
// weights; DataParallel copies them to the other ranks. `resumes`: a checkpoint replaces all values
// later.
FirstNetwork make_first_network(const RunInputs& in, bool resumes) {
  const TrainOptions& o = in.options;
  manual_seed(o.seed);
  FirstNetwork first{.net = make_network(o, in.data)};
  nn::Layer& net = *first.net;
  net.to(in.device, storage_dtype(o), MemoryFormat::channels_last);
  if (o.sync_bn) nn::convert_sync_batchnorm(net, statistics_group(o, in.group));
  if (o.recompute_output) nn::set_recompute_output(net);
  if (resumes && !o.weights.empty())
    first.weights_line =
        fmt::format("the run goes on from its checkpoint: {} is not read", o.weights);
  else if (!o.weights.empty() || o.test_only) {
    const auto load = [&] {
      if (in.group.rank() == 0) first.weights_line = load_weights(o, in.data, net);
    };
    distributed::call_on_all_ranks(in.group, "weights", load, exit_code_of);
  }
  freeze_layers(o, net);
  return first;
}

// Returns why steps are not captured as a CUDA graph; empty if they are.
std::string why_no_graph(const RunInputs& in) {
  if (in.device.is_cpu()) return "needs --device cuda";
  if (in.group.size() > 1 && !in.group.capabilities(in.device).graph_capture)
    return "the ranks pass CUDA tensors through the host: " + in.group.why_staged();
  return {};
}

// Returns the dtype of convolutions and, on CUDA, the settings that a comparison of runs must know.
std::string precision_line(const TrainOptions& o) {
  if (o.device.is_cpu()) return to_string(o.precision);
  return fmt::format("{} (TF32 {}, autotune {})", to_string(o.precision),
                     o.allow_tf32 ? "allowed" : "off", o.autotune ? "on" : "off");
}

}  // namespace

// ---- the steps

StepRunner::StepRunner(const RunInputs& in, nn::Layer& net, DataParallel& data_parallel,
                       Optimization& optimization, optim::CapturedStep::Say say)
    : sums_(in.device),
      step_({.options = in.options,
             .net = net,
             .data_parallel = data_parallel,
             .optimization = optimization,
             .sums = sums_}) {
  const auto step = [this](const std::vector<Tensor>& tensors, std::int64_t global_size) {
    step_.run({.images = tensors[0],
               .labels = tensors[1],
               .soft_labels = tensors[2],
               .global_size = global_size});
  };
  if (in.options.cuda_graph && why_no_graph(in).empty())
    captured_.emplace(step, in.device, std::move(say));
}

void StepRunner::run(const data::Batch& batch) {
  if (captured_) captured_->run({batch.images, batch.labels, batch.soft_labels}, batch.global_size);
  else step_.run(batch);
}

// ---- the test at the end of an epoch

EpochTest::EpochTest(const RunInputs& in, nn::Layer& net)
    : in_(in),
      net_(net),
      loader_(in.data.test, test_loader_options(in.options, in.data, in.group, in.device)) {
  if (const std::int64_t count = statistics_options(in.options).max_steps; count > 0)
    statistics_batches_.emplace(in.data.train,
                                statistics_loader_options(in.options, in.data, in.group, in.device),
                                count, in.device);
}

LossAndAccuracy EpochTest::evaluate() {
  const TestResult result =
      examples::evaluate(net_, loader_, in_.data.classes, in_.group, in_.device, in_.options.task);
  confusion_ = result.confusion;
  return result.means;
}

const BatchNormCheck& EpochTest::check_batch_norm(std::int64_t epoch) {
  check_ = examples::check_batch_norm(
      net_, [&] { statistics_batches_->run(net_, epoch); }, [this] { return evaluate(); },
      in_.group);
  check_->batches = statistics_batches_->count();
  return *check_;
}

// Sets statistics that are the same on all ranks.
void EpochTest::recompute_statistics(std::int64_t epoch) {
  nn::recompute_statistics(
      net_, [&] { statistics_batches_->run(net_, epoch); }, in_.group);
}

// ---- the run

TrainingRun::TrainingRun(const TrainOptions& options, const TrainingData& data,
                         const ProcessGroup& group, std::FILE* screen, const StopRequest* stop)
    : in_{.options = options,
          .data = data,
          .group = group,
          .device = device_of_rank(options, group.local_rank())},
      described_data_(group.rank() == 0 && !options.out.empty() ? describe_data(options, data)
                                                                : Metadata()),
      checkpoint_(find_checkpoint(options, group)),
      network_(make_first_network(in_, checkpoint_.has_value())),
      data_parallel_(net().named_parameters(), net().named_buffers(), group),
      batches_(options, data, group, in_.device),
      length_(run_length(options, batches_.batches_per_epoch())),
      optimization_(trained_parameters(net()), options, length_, trained_in_backbone(net())),
      stop_(group, stop),
      log_(options, group.rank() == 0, screen, length_, checkpoint_ ? checkpoint_->step : 0),
      steps_(in_, *network_.net, data_parallel_, optimization_,
             [this](const std::string& line) { log_.say(line); }),
      epoch_test_(in_, *network_.net) {
  if (const double decay = options.optimizer.ema; decay > 0)
    ema_.emplace(net().named_parameters(), net().named_buffers(), decay);
  if (size_of(options.precision) == 2) autocast_.emplace(options.precision);
  log_.say(headline());
  if (!data.first_look.empty()) log_.say(data.first_look.substr(0, data.first_look.size() - 1));
  if (!network_.weights_line.empty()) log_.say(network_.weights_line);
  if (const std::string why = options.cuda_graph ? why_no_graph(in_) : ""; !why.empty())
    log_.say("cuda graph: none, steps run as they are: " + why);
}

std::string TrainingRun::headline() const {
  std::int64_t others = 0;
  for (const auto& folder : in_.data.folders) others += folder->other_files();
  return fmt::format(
      "{} ({}) on {}: {} training and {} test images{}, {} rank{} ({}) of {}, "
      "global batch {}, {}, {}",
      in_.options.model, describe_parameters(*network_.net), name_of_data(in_.options),
      grouped(in_.data.train->size()), grouped(in_.data.test->size()),
      others > 0 ? fmt::format(" ({} other files)", others) : "", in_.group.size(),
      in_.group.size() > 1 ? "s" : "", in_.group.backend(), describe_threads(),
      in_.options.batch_size, precision_line(in_.options),
      !in_.options.sync_bn ? "BatchNorm of each rank"
      : in_.options.sync_bn_scope == "world"
          ? "SyncBatchNorm"
          : "SyncBatchNorm (scope " + in_.options.sync_bn_scope + ")");
}

bool TrainingRun::has_untested_epoch() const {
  const bool ends_epoch = step_ % length_.steps_per_epoch == 0 || step_ == length_.steps;
  return step_ > 0 && ends_epoch && !is_tested(log_.rows(), step_);
}

bool TrainingRun::train_epoch() {
  for (;;) {
    const data::Batch batch = batches_.load(position_of(step_));
    stop_.begin_step();
    train_step(batch);
    stop_.end_step();
    const bool ends_epoch = step_ % length_.steps_per_epoch == 0;
    if (ends_epoch || is_done()) {
      end_row();
      return true;
    }
    if (step_ % in_.options.log_every == 0) {
      end_row();
      log_.add_row(next_row());
      start_row();
    }
    const bool saves = in_.options.checkpoint_every > 0 &&
                       step_ % in_.options.checkpoint_every == 0;
    if (saves || is_stopped()) save_checkpoint();
    if (is_stopped()) return false;
    log_.show_step(row_);
  }
}

void TrainingRun::train_step(const data::Batch& batch) {
  const trace::Span span([&] { return fmt::format("step {}", step_ + 1); });
  steps_.run(batch);
  steps_.sums().count(batch.global_size * labels_per_image(in_.options));
  row_.epoch = step_ / length_.steps_per_epoch + 1;
  row_.step = ++step_;
  optimization_.advance_schedule();
  row_.learning_rate = optimization_.last_learning_rate();
  update_averages();
}

data::DataLoader::State TrainingRun::position_of(std::int64_t step) const {
  return {.epoch = step / length_.steps_per_epoch, .batch = step % length_.steps_per_epoch};
}

// Takes the weights of this step into their averages. While the learning rate warms up, the weights
// change too fast for an average, which begins anew in every step.
void TrainingRun::update_averages() {
  if (!ema_) return;
  if (step_ <= warmup_steps(in_.options.schedule, length_)) ema_->restart();
  ema_->update();
}

// Begins the time of a row of metrics. In a resumed run the sums have samples of another process.
void TrainingRun::start_row() {
  row_clock_ = {.waited_before = batches_.waited(), .samples_before = steps_.sums().samples()};
}

// Takes the time of the row that ends. In a run that is resumed behind the row's last step it stays
// 0.
void TrainingRun::end_row() {
  const auto samples = static_cast<double>((steps_.sums().samples() - row_clock_.samples_before) /
                                           labels_per_image(in_.options));
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - row_clock_.start,
                                      waited = batches_.waited() - row_clock_.waited_before;
  row_.images_per_second = samples / time.count();
  row_.data_waiting = std::clamp(waited / time, 0.0, 1.0);
}

// Returns the training figures since the last row. This call is collective.
Metrics TrainingRun::next_row() {
  const LossAndAccuracy means = steps_.sums().take(in_.group);
  row_.train_loss = means.loss;
  row_.train_accuracy = means.accuracy;
  expect_finite(row_.train_loss, "the loss is");
  return row_;
}

void TrainingRun::expect_finite(double value, const std::string& what) const {
  if (!std::isfinite(value))
    fail<Error>("{} not finite at step {}; try a smaller --lr than {}", what, row_.step,
                in_.options.optimizer.lr);
}

// Gives all ranks the same running statistics, which are evaluated and saved: those of all groups
// together where groups of ranks share theirs, and rank 0's where plain batch norm has those of
// each rank. This call is collective.
void TrainingRun::share_buffers() {
  if (in_.options.sync_bn && in_.options.sync_bn_scope == "world") return;
  const auto share = [this] {
    if (in_.options.sync_bn) nn::pool_statistics(*network_.net, in_.group);
    else data_parallel_.broadcast_buffers();
  };
  share();
  if (!ema_) return;
  const auto exchange = exchange_averages();
  share();
}

// ---- the end of an epoch and of the run

// Puts the averages, if there are any, in the place of the weights until the result is destroyed.
std::unique_ptr<optim::ExponentialMovingAverage::Exchange> TrainingRun::exchange_averages() {
  if (!ema_) return {};
  return std::make_unique<optim::ExponentialMovingAverage::Exchange>(*ema_);
}

// Returns the weights that are tested and saved: the averages, if there are any.
StateDict TrainingRun::tested_weights() {
  const auto exchange = exchange_averages();
  StateDict weights = net().state_dict();
  if (!ema_) return weights;
  for (auto& [name, tensor] : weights) tensor = tensor.clone();
  return weights;
}

// Tests these weights.
LossAndAccuracy TrainingRun::test_weights() {
  const auto exchange = exchange_averages();
  if (in_.options.recompute_statistics > 0) epoch_test_.recompute_statistics(row_.epoch);
  return epoch_test_.evaluate();
}

void TrainingRun::evaluate_epoch() {
  Metrics row = next_row();
  nn::check_batch_statistics(*network_.net);
  share_buffers();
  if (in_.options.bn_report) {  // before the statistics are recomputed
    const auto exchange = exchange_averages();
    log_.say(describe(epoch_test_.check_batch_norm(row_.epoch), score_name(in_.options)));
  }
  const LossAndAccuracy test = test_weights();
  optimization_.end_epoch(test.loss);
  // No loss is worse than infinity. A table of metrics has NaN for rows without a test.
  row.test_loss = std::isnan(test.loss) ? INFINITY : test.loss;
  row.test_accuracy = test.accuracy;
  log_.add_epoch(row);
  write_report();
  keep_best();
  start_row();
}

LossAndAccuracy TrainingRun::test() {
  const LossAndAccuracy result = epoch_test_.evaluate();
  log_.say(fmt::format("test loss {:.4f}  {} {:.4f}  on {} images", result.loss,
                       score_name(in_.options), result.accuracy, in_.data.test->size()));
  return result;
}

void TrainingRun::keep_best() {
  if (in_.options.keep_best && log_.has_folder())
    examples::keep_best(in_.options, log_.rows(), tested_weights(), weights_metadata());
}

// Returns what a file says about the weights that were tested last.
Metadata TrainingRun::weights_metadata() const {
  const Metrics& tested = log_.rows().back();
  Metadata metadata = model_card(in_.options, in_.data).to_metadata();
  metadata["dataset"] = in_.options.dataset;
  metadata["epoch"] = std::to_string(tested.epoch);
  metadata["step"] = std::to_string(tested.step);
  metadata[score_key(in_.options)] = fmt::format("{}", tested.test_accuracy.value_or(0));
  return metadata;
}

// Writes the page of the run folder.
void TrainingRun::write_report() {
  if (!log_.has_folder()) return;
  log_.write_report(to_html({.options = in_.options,
                             .data = in_.data,
                             .group = in_.group,
                             .device = in_.device,
                             .length = length_,
                             .rows = log_.rows(),
                             .headline = headline(),
                             .confusion = epoch_test_.confusion(),
                             .batch_norm = epoch_test_.take_check(),
                             .resumed = resumed_}));
}

TrainResult TrainingRun::finish() {
  TrainResult result{.rows = log_.rows(), .state = tested_weights()};
  result.test_accuracy = result.rows.back().test_accuracy.value_or(0);
  log_.save_weights(result.state, weights_metadata());
  log_.say(fmt::format("{} {:.4f}", score_name(in_.options), result.test_accuracy));
  return result;
}

TrainResult TrainingRun::finish_early() {
  log_.say(fmt::format("{}: stopped after step {} of {}, {}",
                       distributed::signal_name(stop_.signal()), step_, length_.steps,
                       in_.options.out.empty()
                           ? "without a run folder for a checkpoint"
                           : "with a checkpoint in " + checkpoint_path(in_.options)));
  return {.rows = log_.rows(), .state = tested_weights(), .is_stopped = true};
}

// ---- checkpoints

void TrainingRun::begin() {
  if (checkpoint_) continue_from(*checkpoint_);
  else if (in_.options.resume) log_.say("no checkpoint yet: from the beginning");
  log_.open(checkpoint_ ? std::move(checkpoint_->rows) : std::vector<Metrics>());
  checkpoint_.reset();
  start_row();
}

void TrainingRun::continue_from(const Checkpoint& from) {
  const std::string difference = distributed::broadcast_text(
      in_.group, in_.group.rank() == 0 ? other_data(in_.options, from, described_data_) : "",
      "data");
  const auto load = [&] {
    check_length(in_.options, from, length_);
    if (!difference.empty()) refuse_checkpoint(in_.options, difference);
    restore(in_.options, from, *network_.net, optimization_, ema_ ? &*ema_ : nullptr);
  };
  distributed::call_on_all_ranks(in_.group, "checkpoint", load, exit_code_of);
  step_ = from.step;
  if (!from.rows.empty()) row_ = from.rows.back();
  row_.test_loss = row_.test_accuracy = {};
  row_.images_per_second = row_.data_waiting = 0;
  row_.step = step_;
  row_.epoch = (step_ + length_.steps_per_epoch - 1) / length_.steps_per_epoch;
  row_.learning_rate = optimization_.last_learning_rate();
  steps_.sums().restore(sums_of_rank(from, in_.group.rank(), in_.group.size()), from.samples);
  distributed::set_generator(random_of_rank(from, in_.group.rank()));
  resumed_ = from.resumed;
  if (step_ < length_.steps) resumed_.push_back(step_);
  log_.say(fmt::format("going on after step {} of {}", step_, length_.steps));
  if (from.ranks() != in_.group.size())
    log_.say(fmt::format(
        "ranks {} -> {}: the global batch of {} images and the order of the images stay",
        from.ranks(), in_.group.size(), in_.options.batch_size));
  for (const std::string& line : changed_options(in_.options, from.options)) log_.say(line);
}

void TrainingRun::save_checkpoint() {
  share_buffers();
  const Tensor random = distributed::gather_generators(in_.group),
               sums = empty({in_.group.size(), LossSums::figures}, {.dtype = float64});
  in_.group.all_gather(steps_.sums().sums(), sums, {.name = "checkpoint"}).wait();
  const Checkpoint checkpoint{.step = step_,
                              .steps = length_.steps,
                              .steps_per_epoch = length_.steps_per_epoch,
                              .model = network_.net->state_dict(),
                              .optimizer = optimization_.optimizer_state(),
                              .scaler = optimization_.scaler_state(),
                              .plateau = optimization_.plateau_state(),
                              .ema = ema_ ? ema_->state_dict() : StateDict(),
                              .random = random,
                              .sums = sums,
                              .samples = steps_.sums().samples(),
                              .rows = log_.rows(),
                              .resumed = resumed_,
                              .data = described_data_};
  // Weights that are ruined must not replace the last good ones. All ranks throw alike.
  expect_finite(sum(sums.select(1, 0)).item<double>(), "the loss is");
  const std::string ruined = distributed::broadcast_text(
      in_.group, in_.group.rank() == 0 ? tensor_not_finite(checkpoint) : "", "ruined tensor");
  if (!ruined.empty()) expect_finite(NAN, fmt::format("'{}' is", ruined));
  if (!log_.has_folder()) return;
  examples::save_checkpoint(in_.options, checkpoint);
  if (in_.options.keep_last > 0 && is_tested(log_.rows(), step_))
    keep_checkpoint(in_.options, checkpoint, log_.rows().back().epoch);
}

}  // namespace tutti::examples
