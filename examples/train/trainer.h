// The trainer: one rank's part of a training run, from seed to weights, and of a test of weights.
// It is a function, so that tests can call it under any group; the program around it is
// train_resnet.cpp.
#pragma once

#include "dataset.h"
#include "evaluation.h"
#include "options.h"

#include <tutti/distributed/agreement.h>

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

/// Returns a text of several lines: the model by types of layers, the length of the run, the memory
/// of a rank, and what a rank sends in a step. `ranks` counts threads or processes.
///
/// Memory is measured on the CPU, with the statistics of its allocator, in steps of 2 and of 4
/// images, and extrapolated to a rank's part of the batch. What libraries such as oneDNN allocate
/// by themselves and images that are loaded ahead do not count. Communication is what one of two
/// ranks that are threads issues in a step; collectives and bytes do not depend on their number.
std::string describe_run(const TrainOptions& options, const TrainingData& data, int ranks);

}  // namespace tutti::examples
