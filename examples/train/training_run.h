// TrainingRun: the state of one rank's training run (network, optimizer, data, metrics) and the
// steps that change it. train() in trainer.cpp calls them in their order. What is written where is
// RunLog's business, what a checkpoint holds Checkpoint's.
#pragma once

#include "../report/run_report.h"
#include "checkpoint.h"
#include "dataset.h"
#include "metric_sums.h"
#include "optimization.h"
#include "options.h"
#include "run_log.h"
#include "step_runner.h"
#include "step_times.h"
#include "test_details.h"
#include "trainer.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/data/loader.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/distributed/data_parallel/join.h>
#include <tutti/distributed/diagnostics/straggler_monitor.h>
#include <tutti/nn/resnet.h>

#include <chrono>

namespace tutti::examples {

class TrainingRun {
 public:
  /// Sets up the run on this rank; every rank constructs one. With options.resume this reads the
  /// run folder's checkpoint, and throws a CheckpointError where it is not valid.
  TrainingRun(const TrainOptions& options, const TrainingData& data, const ProcessGroup& group,
              std::FILE* screen);
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  /// Continues from the checkpoint, if there is one, and opens the run folder. Call it once, before
  /// the first epoch. Throws RefusedOnAllRanks, before anything of the run folder has changed,
  /// where the checkpoint does not fit.
  void begin();
  bool is_done() const { return step_ == length_.steps; }
  /// Trains up to the end of the epoch (or of the run), with rows of metrics and checkpoints on the
  /// way as the options say.
  void train_epoch();
  /// Evaluates the network on the test images, and adds the row that ends the epoch.
  void evaluate_epoch();
  /// Saves what the run needs to continue from here. Only rank 0 writes.
  void save_checkpoint();
  /// Saves the weights, and returns the results.
  TrainResult finish();

 private:
  void train_step();
  data::Batch load_batch();
  data::Batch batch_at(data::DataLoader::State place);
  void compute_step(const data::Batch& batch);
  void start_row();
  Metrics next_row();
  void share_buffers();
  void continue_from(const Checkpoint& checkpoint);
  std::string headline() const;
  std::optional<BatchNormPage> examine_batch_norm();
  void write_report(std::optional<BatchNormPage> batch_norm);

  const TrainOptions& options_;
  const TrainingData& data_;
  const ProcessGroup& group_;
  const Device device_;
  std::optional<Checkpoint> checkpoint_;  // where the run continues from; none after begin()
  const std::shared_ptr<nn::ResNet> net_;
  distributed::DataParallel data_parallel_;
  data::DataLoader train_loader_, test_loader_;
  const RunLength length_;
  Optimization optimization_;
  RunLog log_;
  std::optional<Autocast> autocast_;  // in 16-bit precisions
  distributed::StragglerMonitor straggler_monitor_;
  distributed::Join join_;
  StepRunner step_runner_;
  StepTimer step_timer_;
  TestRecorder test_recorder_;

  std::int64_t step_ = 0;  // steps made so far
  MetricSums sums_;        // since the last row
  Metrics row_;            // the figures of the last row, with the present step and epoch
  std::chrono::steady_clock::time_point row_start_;
  std::chrono::duration<double> waited_before_row_{0};  // for training data
};

}  // namespace tutti::examples
