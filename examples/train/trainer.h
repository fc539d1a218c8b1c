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
/// `ranks` is not read, and the same data. Rank 0 writes the run folder `options.out` (none where
/// it is empty) and to `screen` (nothing where it is null). Throws an Error on every rank where the
/// loss is no longer finite, and ErrorOnAllRanks where the checkpoint or the weights do not fit the
/// run. Sets the calling thread's number of threads.
///
/// Where `stop` (on all ranks or on none) asks any rank to stop, all ranks write a checkpoint after
/// the same step, at most one after that in which it asked (with NCCL ten), and return. An
/// evaluation is finished first.
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

/// What a run is given. All of it outlives the run.
struct RunInputs {
  const TrainOptions& options;
  const TrainingData& data;
  ProcessGroup group;
  Device device;  ///< of this rank
};

/// The network that a run trains, and the line about the file of its first weights.
struct FirstNetwork {
  std::shared_ptr<nn::Layer> net;
  std::string weights_line = {};
};

/// What makes the steps of a run: one step's work, or on a GPU its recording, and the sums of the
/// steps since the last row of metrics.
class StepRunner {
 public:
  StepRunner(const RunInputs& in, nn::Layer& net, DataParallel& data_parallel,
             Optimization& optimization, optim::CapturedStep::Say say);
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  /// Makes a step on this rank's part of a global batch.
  void run(const data::Batch& batch);
  LossSums& sums() { return sums_; }

 private:
  LossSums sums_;
  TrainingStep step_;
  std::optional<optim::CapturedStep> captured_;  // on a GPU, unless the options say otherwise
};

/// The end of an epoch: what tests and examines the network.
class EpochTest {
 public:
  EpochTest(const RunInputs& in, nn::Layer& net);

  /// Tests the network on the test images. Collective.
  LossAndAccuracy evaluate();
  /// Examines its batch normalisation, for --bn-report. Collective.
  const BatchNormCheck& check_batch_norm(std::int64_t epoch);
  /// Replaces its running statistics, for --recompute-statistics. Collective.
  void recompute_statistics(std::int64_t epoch);
  /// Returns the confusion matrix of the last test.
  const Tensor& confusion() const { return confusion_; }
  /// Returns what check_batch_norm() has found since the last call.
  std::optional<BatchNormCheck> take_check() { return std::exchange(check_, {}); }

 private:
  const RunInputs& in_;
  nn::Layer& net_;
  data::DataLoader loader_;
  std::optional<StatisticsBatches> statistics_batches_;  // of --bn-report, --recompute-statistics
  Tensor confusion_;
  std::optional<BatchNormCheck> check_;
};

/// Measures the time of a row of metrics.
struct RowClock {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::chrono::duration<double> waited_before{0};  ///< for training data
  std::int64_t samples_before = 0;                 ///< those that the sums had then
};

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
  bool is_done() const { return step_ == length_.steps; }
  /// Returns whether all ranks have agreed to stop before the end of the run.
  bool is_stopped() const { return stop_.signal() != 0 && !is_done(); }
  const nn::Module& net() const { return *network_.net; }
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
  /// Says where the checkpoint of a stopped run is, and returns the results so far.
  TrainResult finish_early();

 private:
  data::DataLoader::State position_of(std::int64_t step) const;
  void train_step(const data::Batch& batch);
  void start_row();
  void expect_finite(double value, const std::string& what) const;
  void end_row();
  Metrics next_row();
  void update_averages();
  void share_buffers();
  std::unique_ptr<optim::ExponentialMovingAverage::Exchange> exchange_averages();
  LossAndAccuracy test_weights();
  StateDict tested_weights();
  void continue_from(const Checkpoint& checkpoint);
  void keep_best();
  Metadata weights_metadata() const;
  std::string headline() const;
  void write_report();

  const RunInputs in_;
  const Metadata described_data_;         // for checkpoints; on rank 0 of a run with a folder
  std::optional<Checkpoint> checkpoint_;  // where the run continues from; none after begin()

  const FirstNetwork network_;
  distributed::DataParallel data_parallel_;
  TrainingBatches batches_;
  const RunLength length_;
  Optimization optimization_;
  std::optional<optim::ExponentialMovingAverage> ema_;  // with --ema
  std::optional<Autocast> autocast_;                    // in 16-bit precisions
  distributed::StopAgreement stop_;
  RunLog log_;
  StepRunner steps_;
  EpochTest epoch_test_;

  std::int64_t step_ = 0;                   // steps made so far
  std::vector<std::int64_t> resumed_ = {};  // after these steps
  Metrics row_;  // the figures of the last row, with the present step and epoch
  RowClock row_clock_;
};

}  // namespace tutti::examples
