// The trainer: one rank's part of a training run, from seed to weights, and of a test of weights.
// It is a function, so that tests can call it under any group; the program around it is
// train_resnet.cpp.
#pragma once

#include "batch_norm_check.h"
#include "checkpoint.h"
#include "evaluation.h"
#include "metrics.h"
#include "options.h"
#include "run_log.h"
#include "training_batches.h"
#include "training_step.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/data/loader.h>
#include <tutti/distributed/agreement.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/distributed/diagnostics/straggler_monitor.h>
#include <tutti/optim/captured_step.h>
#include <tutti/optim/exponential_moving_average.h>

#include <chrono>
#include <cstdio>

namespace tutti::examples {

struct TrainResult {
  std::vector<Metrics> rows;  ///< The same on every rank.
  StateDict state;            ///< This rank's weights (or averages) and buffers at the end.
  double test_accuracy = 0;
  /// The run was stopped before its end; the checkpoint is written.
  bool is_stopped = false;
};

using distributed::ErrorOnAllRanks;
using distributed::StopRequest;

/// Trains and evaluates a network. Every rank of `group` calls it with the same options, of which
/// `ranks` is not read. The data are the same on every rank; with `options.sharded`, `data.train`
/// is this rank's own. Rank 0 writes the run folder `options.out` (none where it is empty) and to
/// `screen` (nothing where it is null). Throws an Error on every rank where the loss is no longer
/// finite, and ErrorOnAllRanks where the checkpoint or the weights do not fit the run. Sets the
/// calling thread's number of threads.
///
/// Where `stop` (on all ranks or on none) asks any rank to stop, all ranks write a checkpoint after
/// the same step, at most one after that in which it asked (with NCCL ten), and return. An
/// evaluation is finished first. With `stop`, and without NCCL, ranks also stop together, with a
/// checkpoint and ErrorOnAllRanks, before a step for which one of them cannot load
/// its images, unless it is the first of an epoch.
TrainResult train(const TrainOptions& options, const TrainingData& data, const ProcessGroup& group,
                  std::FILE* screen, const StopRequest* stop = nullptr);

/// Evaluates, on the test images, the weights that options.test_only asks for (load_weights() in
/// network.h says which), and returns the means over all images. Called as train(). Writes
/// no file. Throws ErrorOnAllRanks where the weights do not fit the network.
LossAndAccuracy test_weights(const TrainOptions& options, const TrainingData& data,
                             const ProcessGroup& group, std::FILE* screen);

constexpr int exit_success = 0;
/// Anything that neither flags nor data explain: a full disk, a loss that is not finite, another
/// rank that failed.
constexpr int exit_failure = 1;
/// A wrong flag, or data or a checkpoint that cannot be used. Trying again does not help.
constexpr int exit_bad_input = 2;
/// A signal stopped the run, and a checkpoint was written: --resume goes on.
constexpr int exit_stopped = 3;

template <class... Errors>
bool is_any_of(const std::exception& error) {
  return ((dynamic_cast<const Errors*>(&error) != nullptr) || ...);
}

/// Returns the exit code that fits an error.
inline int exit_code_of(const std::exception& error) {
  return is_any_of<UsageError, DataError, CheckpointError, ValueError, DeviceError>(error)
             ? exit_bad_input
             : exit_failure;
}

/// Returns the device of a rank. With CUDA, rank r of a host gets device r after the one of
/// `options`; where the host has fewer devices, ranks share them.
Device device_of_rank(const TrainOptions& options, int local_rank);

/// Returns this rank's fair number of threads: the cores that it may run on, divided by the number
/// of ranks of `group` that may run on the same ones. This call is collective.
int threads_of_rank(const ProcessGroup& group);

/// The state of one rank's training run (network, optimizer, data, metrics) and the steps that
/// change it. train() calls them in their order. What is written where is RunLog's business, what a
/// checkpoint holds Checkpoint's.
class TrainingRun {
 public:
  /// Sets up the run on this rank; every rank constructs one. With options.resume this reads the
  /// run folder's checkpoint, and throws ErrorOnAllRanks where it is not valid.
  TrainingRun(const TrainOptions& options, const TrainingData& data, const ProcessGroup& group,
              std::FILE* screen, const StopRequest* stop);
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  /// Continues from the checkpoint, if there is one, and opens the run folder. Call it once, before
  /// the first epoch. Throws ErrorOnAllRanks, before anything of the run folder has changed,
  /// where the checkpoint does not fit.
  void begin();
  bool is_done() const { return step_ == length_.steps || is_stopped_early_; }
  /// Returns whether all ranks have agreed to stop before the end of the run.
  bool is_stopped() const { return stop_.signal() != 0 && !is_done(); }
  const RunLength& length() const { return length_; }
  const nn::Module& net() const { return *net_; }
  /// Evaluates the weights that options.test_only asks for, and prints the result.
  LossAndAccuracy test();
  /// Returns whether the last epoch is trained and not evaluated, as in a checkpoint that was saved
  /// between the two.
  bool has_untested_epoch() const;
  /// Trains up to the end of the epoch (or of the run), with rows of metrics and checkpoints on the
  /// way as the options say. Returns false where a stop has ended it earlier, with a checkpoint.
  bool train_epoch();
  /// Evaluates the network, or its averaged weights, on the test images, and adds the row that ends
  /// the epoch.
  void evaluate_epoch();
  /// Saves what the run needs to continue from here. Only rank 0 writes. Throws an Error on all
  /// ranks, and keeps the old file, where the loss, a weight or what updates it is not finite. This
  /// call is collective.
  void save_checkpoint();
  /// Saves the weights, and returns the results.
  TrainResult finish();
  /// Says where the checkpoint of a stopped run is, and returns the results so far. Throws
  /// ErrorOnAllRanks where images that cannot be loaded have stopped it.
  TrainResult finish_early();

 private:
  data::DataLoader::State position_of(std::int64_t step) const;
  data::Batch load_batch();
  bool can_go_on();
  void train_step(const data::Batch& batch);
  void start_row();
  void expect_finite(double value, const std::string& what) const;
  void end_row();
  Metrics next_row();
  void update_averages();
  void share_buffers();
  void check_batch_norm();
  void recompute_statistics();
  LossAndAccuracy evaluate_net(bool records);
  LossAndAccuracy test_weights();
  StateDict tested_weights();
  void continue_from(const Checkpoint& checkpoint);
  void stop_early();
  void keep_best();
  Metadata weights_metadata() const;
  void say_replaced_files();
  void throw_load_error() const;
  std::string headline() const;
  void write_report();

  const TrainOptions& options_;
  const TrainingData& data_;
  const ProcessGroup& group_;
  const Device device_;
  const Metadata described_data_;         // for checkpoints; on rank 0 of a run with a folder
  std::optional<Checkpoint> checkpoint_;  // where the run continues from; none after begin()
  std::string weights_line_;              // what make_net() says of --weights
  const std::shared_ptr<nn::Layer> net_;
  distributed::DataParallel data_parallel_;
  TrainingBatches batches_;
  data::DataLoader test_loader_;
  // Of --bn-report and --recompute-statistics; null without these flags.
  const std::unique_ptr<StatisticsBatches> statistics_batches_;
  const RunLength length_;
  Optimization optimization_;
  std::optional<optim::ExponentialMovingAverage> ema_;  // with --ema
  RunLog log_;
  std::optional<Autocast> autocast_;  // in 16-bit precisions
  distributed::StragglerMonitor straggler_monitor_;
  distributed::StopAgreement stop_;
  StepTimer step_timer_;
  LossSums sums_;  // since the last row
  TrainingStep training_step_;
  optim::CapturedStep captured_step_;
  TestRecorder test_recorder_;
  TestDetails pixels_;  // of the last test, in segmentation, which has no use for the recorder

  std::int64_t step_ = 0;                           // steps made so far
  bool is_stopped_early_ = false;                   // by options.patience
  std::optional<BatchNormCheck> batch_norm_check_;  // of the last epoch, with --bn-report
  Metrics row_;  // the figures of the last row, with the present step and epoch
  std::chrono::steady_clock::time_point row_start_;
  std::chrono::duration<double> waited_before_row_{0};  // for training data
  std::int64_t samples_before_row_ = 0;                 // those of sums_ when the row began
};

}  // namespace tutti::examples
