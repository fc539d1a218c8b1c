// This file sets a run up and trains it. What an epoch's end computes and writes is in
// training_run_results.cpp, and how a run is saved and continued in training_run_state.cpp.
#include "training_run.h"

#include "batches.h"
#include "dataset.h"
#include "metrics.h"
#include "network.h"
#include "optimization.h"
#include "placement.h"

#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/core/random.h>
#include <tutti/core/trace.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/pool_statistics.h>

#include <algorithm>
#include <cmath>

namespace tutti::examples {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t shown_predictions = 12;  // of each kind, in the report

// ---- set up

// Returns what rank 0 finds in the run folder, on every rank.
std::optional<Checkpoint> find_checkpoint(const TrainOptions& o, const ProcessGroup& group) {
  if (!o.resume) return {};
  return broadcast_checkpoint(group.rank() == 0 ? load_checkpoint(o) : std::nullopt, group);
}

// Returns the network that the run begins with, and the line about the file of its weights. Only
// rank 0 has the values of the file; DataParallel copies them to the other ranks. `resumes`: a
// checkpoint replaces all values later.
std::shared_ptr<nn::ResNet> make_net(const TrainOptions& o, const TrainingData& data,
                                     const ProcessGroup& group, Device device, bool resumes,
                                     std::string& weights_line) {
  manual_seed(o.seed);
  auto net = nn::resnet(
      o.model,
      {.classes = data.classes, .channels = data.channels, .zero_init_residual = o.zero_init});
  net->to(device, storage_dtype(o), o.memory_format);
  if (o.sync_bn) nn::convert_sync_batchnorm(*net, statistics_group(o, group));
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
  const std::int64_t steps = o.epochs * steps_per_epoch;
  return {.epochs = o.epochs,
          .steps_per_epoch = steps_per_epoch,
          .steps = o.max_steps > 0 ? std::min(o.max_steps, steps) : steps};
}

// Decides whether steps are captured as a CUDA graph.
GraphChoice choose_graph(const TrainOptions& o, const ProcessGroup& group, Device device) {
  if (!o.cuda_graph) return {};
  if (device.is_cpu()) return {.why_not = "needs --device cuda"};
  if (group.size() > 1 && !group.capabilities().graph_capture)
    return {.why_not = fmt::format("the ranks' group ({}) passes CUDA tensors through the host",
                                   group.backend())};
  if (o.sharded)
    return {
        .why_not = "with --sharded the batches of the ranks change independently of each other"};
  return {.device = device};
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
      optimization_(trained_parameters(*net_), options, length_),
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
      step_runner_([this](const data::Batch& batch) { training_step_.run(batch); },
                   choose_graph(options, group, device_),
                   [this](const std::string& line) { log_.say(line); }),
      test_recorder_(data.classes, shown_predictions) {
  if (const double decay = options.optimizer.ema; decay > 0)
    ema_.emplace(net_->named_parameters(), net_->named_buffers(), decay);
  if (size_of(options.precision) == 2) autocast_.emplace(options.precision);
  log_.say(headline());
  if (!weights_line_.empty()) log_.say(weights_line_);
}

std::string TrainingRun::headline() const {
  const auto plural = [](int n) { return n > 1 ? "s" : ""; };
  return fmt::format(
      "{} ({}) on {}: {} training{} and {} test images, {} rank{} ({}) of {} thread{}, "
      "global batch {}, {}, {}",
      options_.model, describe_parameters(*net_), options_.dataset, data_.train->size(),
      options_.sharded ? " (of rank 0)" : "", data_.test->size(), group_.size(),
      plural(group_.size()), group_.backend(), num_threads(), plural(num_threads()),
      options_.batch_size, precision_line(options_),
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
  step_runner_.run(batch);
  step_timer_.count_step();
  sums_.count(batch.global_size);
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
  const auto samples = static_cast<double>(sums_.samples() - samples_before_row_);
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

}  // namespace tutti::examples
