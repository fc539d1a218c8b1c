// Checkpoint: everything that a run needs to continue with the same bits as if it had never
// stopped: weights and their averages, optimizer, loss scale, random numbers, the sums of an
// incomplete row of metrics, and the rows so far. Another number of ranks can continue it, too
// (other_ranks.h). It does not hold what follows from the options
// and the step, such as the order of the data and the schedule. Rank 0 writes and reads the file; a
// write that is interrupted leaves the old file.
#pragma once

#include "options.h"
#include "run_folder.h"

#include <tutti/distributed/process_group.h>
#include <tutti/optim/optimizer.h>

#include <array>

namespace tutti::examples {

/// The metadata that describe the data of a run (describe_data() in same_data.h).
inline constexpr std::array data_metadata{
    "classes",     "class_names",      "train_images", "train_fingerprint",
    "test_images", "test_fingerprint", "mean",         "std",
    "channels",    "resize_size",      "input_size",   "model"};

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
  Tensor sums = {};    ///< float64 (ranks, 2): each rank's MetricSums::sums().
  std::int64_t samples = 0;  ///< The samples that `sums` counts, of all ranks.
  std::vector<Metrics> rows = {};
  /// The data of the run, by the keys of data_metadata; empty in a checkpoint of an earlier
  /// version.
  Metadata data = {};
  /// The options of the run as JSON; save_checkpoint() sets them.
  std::string options = {};

  /// Returns the number of ranks that made the checkpoint.
  int ranks() const { return static_cast<int>(random.size(0)); }
};

/// Returns OUT/checkpoint.safetensors.
std::string checkpoint_path(const TrainOptions& options);

/// Returns whether a file with these metadata is a checkpoint.
bool is_checkpoint(const Metadata& metadata);

/// Writes the file, or one at another `path`. Only rank 0 calls it.
void save_checkpoint(const TrainOptions& options, const Checkpoint& checkpoint);
void save_checkpoint(const TrainOptions& options, const Checkpoint& checkpoint,
                     const std::string& path);

/// Reads the file of the run folder; returns nothing where there is none. Throws a CheckpointError
/// of one line, which names the file and the entry, where an entry is missing, unknown, or has a
/// shape, a dtype or a value that no run writes, and where the file comes from a run with other
/// options. Whether the weights and the optimizer's state fit the network is checked by restore(),
/// and whether another number of ranks can go on by check_ranks().
std::optional<Checkpoint> load_checkpoint(const TrainOptions& options);

/// Returns the name of the first tensor of the network, the optimizer or the averages that has a
/// number that is not finite; empty if there is none.
std::string tensor_not_finite(const Checkpoint& checkpoint);

/// Throws the CheckpointError that says why `options` cannot resume from its checkpoint.
[[noreturn]] void refuse_checkpoint(const TrainOptions& options, const std::string& reason);

/// Returns rank 0's checkpoint on every rank; the others pass nothing. This call is collective.
/// Only rank 0 needs to see the file.
std::optional<Checkpoint> broadcast_checkpoint(std::optional<Checkpoint> mine,
                                               const ProcessGroup& group);

}  // namespace tutti::examples
