// Checkpoint: everything a run needs to go on as if it had never stopped, to the bit: weights,
// optimizer, loss scale, random numbers, the sums of a row of metrics that is not complete, and the
// rows so far. What follows from the options and the step (the order of the data, the schedule) is
// not in it. Rank 0 writes and reads the file, whole or not at all.
#pragma once

#include "options.h"
#include "run_folder.h"

#include <tutti/distributed/process_group.h>
#include <tutti/optim/optimizer.h>

namespace tutti::examples {

struct Checkpoint {
  std::int64_t step = 0;   ///< steps made
  std::int64_t steps = 0;  ///< that the run has in all
  StateDict model;
  optim::OptimizerState optimizer;
  StateDict scaler;  ///< of the loss; empty where nothing is scaled
  Tensor random;     ///< int64 (ranks, 2): seed and position of each rank's default generator
  Tensor sums;       ///< float64 (ranks, 2): see Tally
  std::int64_t samples = 0;  ///< likewise
  std::vector<Metrics> rows;
};

/// OUT/checkpoint.safetensors
std::string checkpoint_path(const TrainOptions& options);

/// On rank 0.
void save_checkpoint(const TrainOptions& options, const Checkpoint& checkpoint);

/// The file of the run folder; nothing where there is none. CheckpointError in one line where it is
/// damaged, or is of a run with other options or another number of ranks.
std::optional<Checkpoint> load_checkpoint(const TrainOptions& options, int ranks);

/// Collective: what rank 0 has, on every rank. Only rank 0 needs to see the file.
std::optional<Checkpoint> share(std::optional<Checkpoint> mine, const ProcessGroup& group);

}  // namespace tutti::examples
