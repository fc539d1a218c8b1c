// TrainingStep: what the device computes in one step of training: forward, loss, backward and the
// update of the weights, for a global batch in one part or in several micro batches. It does not
// know where batches come from, nor how the weights are updated (Optimization).
#pragma once

#include "metric_sums.h"
#include "optimization.h"
#include "options.h"
#include "step_times.h"

#include <tutti/data/batch.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/nn/module.h>

namespace tutti::examples {

class TrainingStep {
 public:
  /// What a step reads and changes. All of it must outlive the TrainingStep.
  struct Parts {
    const TrainOptions& options;
    nn::Layer& net;
    DataParallel& data_parallel;  ///< of the parameters of `net`
    Optimization& optimization;
    MetricSums& sums;  ///< gets the losses and the correct answers
    StepTimer& timer;
  };
  explicit TrainingStep(const Parts& parts) : parts_(parts) {}

  /// Makes a step on this rank's part of a global batch. The gradient is that of the mean loss over
  /// the global batch, however unevenly ranks and micro batches share it. Every rank calls this
  /// with the same batch.global_size.
  void run(const data::Batch& batch);

 private:
  void compute_gradients(const data::Batch& micro_batch);

  Parts parts_;
};

}  // namespace tutti::examples
