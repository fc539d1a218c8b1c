// Checkpoint: everything that a run needs to continue with the same bits as if it had never
// stopped, also on another number of ranks. It does not hold what follows from the options and the
// step, such as the order of the data and the schedule. Rank 0 writes and reads the file; a write
// that is interrupted leaves the old file.
#pragma once

#include "metrics.h"
#include "options.h"
#include "training_data.h"

#include <tutti/distributed/process_group.h>
#include <tutti/nn/module.h>
#include <tutti/optim/exponential_moving_average.h>
#include <tutti/optim/optimizer.h>

#include <functional>

namespace tutti::examples {

class Optimization;

struct Checkpoint {
  std::int64_t step = 0;   ///< The number of steps that were made.
  std::int64_t steps = 0;  ///< The number of steps of the whole run.
  std::int64_t steps_per_epoch = 0;
  StateDict model = {};
  optim::OptimizerState optimizer = {};
  StateDict scaler = {};   ///< The state of the GradScaler; empty where there is none.
  StateDict plateau = {};  ///< The state of --schedule plateau; empty where there is none.
  StateDict ema = {};      ///< The averages of --ema; empty where there are none.
  Tensor random = {};  ///< int64 (ranks, 2): seed and position of each rank's default generator.
  Tensor sums = {};    ///< float64 (ranks, 3): each rank's LossSums::sums().
  std::int64_t samples = 0;  ///< The samples that `sums` counts, of all ranks.
  std::vector<Metrics> rows = {};
  std::vector<std::int64_t> resumed = {};  ///< The steps after which the run was resumed.
  /// The data of the run, by the keys of data_metadata; empty where they have no description.
  Metadata data = {};
  /// The options of the run as JSON; save_checkpoint() sets them.
  std::string options = {};

  /// Returns the number of ranks that made the checkpoint.
  int ranks() const { return static_cast<int>(random.size(0)); }
};

/// Throws a CheckpointError, which names the entry with this prefix, unless `from` has exactly the
/// entries of `own`, each with its shape and a dtype that `fits` accepts.
void check_entries(const StateDict& from, const StateDict& own, const std::string& prefix,
                   const std::function<bool(const Tensor&, const Tensor&)>& fits);

/// Returns OUT/checkpoint.safetensors.
std::string checkpoint_path(const TrainOptions& options);

/// Writes the file of the run folder, or one at another `path`. Only rank 0 calls it.
void save_checkpoint(const TrainOptions& options, const Checkpoint& checkpoint,
                     const std::string& path = {});

/// Reads the file of the run folder; returns nothing where there is none. Throws a CheckpointError
/// of one line, which names the file and the entry, where an entry is missing, has a wrong shape
/// or dtype, or numbers of steps that cannot be, and where the file comes from a run with other
/// options. Whether the weights and the optimizer's state fit the network is checked by restore().
std::optional<Checkpoint> load_checkpoint(const TrainOptions& options);

/// Returns the name of the first tensor of the network, the optimizer or the averages that has a
/// number that is not finite; empty if there is none.
std::string tensor_not_finite(const Checkpoint& checkpoint);

/// Throws the CheckpointError that says why `options` cannot resume from its checkpoint.
[[noreturn]] void refuse_checkpoint(const TrainOptions& options, const std::string& reason);

/// Returns rank 0's checkpoint on every rank; the others pass nothing. This call is collective.
/// Only rank 0 needs to see the file.
std::optional<Checkpoint> broadcast_checkpoint(const std::optional<Checkpoint>& mine,
                                               const ProcessGroup& group);

/// Returns the first difference between the data of a checkpoint and those of this run, which
/// describe_data() has described; empty if they are the same, and where `now` is.
std::string other_data(const TrainOptions& options, const Checkpoint& from, const Metadata& now);

/// Returns OUT/best.safetensors.
std::string best_path(const TrainOptions& options);

/// Writes best.safetensors if the last of `rows` is the best_row() of them.
void keep_best(const TrainOptions& options, const std::vector<Metrics>& rows,
               const StateDict& state, const Metadata& metadata);

/// Writes the checkpoint of the end of an epoch as OUT/checkpoint-epoch-NNNN.safetensors, and then
/// removes those of epochs that are no longer among the last options.keep_last.
void keep_checkpoint(const TrainOptions& options, const Checkpoint& checkpoint, std::int64_t epoch);

/// Throws a CheckpointError, which names the file, unless a run of this length can go on from the
/// checkpoint: it has as many steps in an epoch, and has not made more steps than the run is to
/// make.
void check_length(const TrainOptions& options, const Checkpoint& from, const RunLength& length);

/// Loads the weights, the optimizer and the loss scale of a checkpoint, and the averaged weights
/// into `ema`, which is null in a run without them. Throws a CheckpointError,
/// which names the file and the entry, and changes nothing, unless the checkpoint holds exactly
/// what such a run saves: every tensor with its shape and dtype, and the options that the run has.
void restore(const TrainOptions& options, const Checkpoint& from, nn::Module& net,
             Optimization& optimization, optim::ExponentialMovingAverage* ema);

/// Returns the sums of losses and correct answers with which a rank goes on, float64 (2). Together
/// the ranks go on with the sums of all ranks of the checkpoint. With as many ranks as before each
/// has its own.
Tensor sums_of_rank(const Checkpoint& from, int rank, int ranks);

/// Returns seed and position of the random numbers with which a rank goes on, int64 (2): its own,
/// or those of another rank where the run had fewer ranks. Images are not drawn from them, but with
/// the numbers of epoch and image.
Tensor random_of_rank(const Checkpoint& from, int rank);

}  // namespace tutti::examples
