// How a run goes on with another number of ranks than its checkpoint is from: whether it can, which
// part of the ranks' own state each rank takes, and what the user is told. The rest of a checkpoint
// is the same for every rank, and is restored by restore.h.
#pragma once

#include "checkpoint.h"
#include "progress.h"

namespace tutti::examples {

/// Throws a CheckpointError, which names the file, where a run of this length on `ranks` ranks
/// cannot go on from the checkpoint. Only --sharded refuses another number of ranks: where the
/// global batch would change, and in the middle of an epoch, where images would be lost or
/// repeated.
void check_ranks(const TrainOptions& options, const Checkpoint& from, const RunLength& length,
                 int ranks);

/// Returns the sums of losses and correct answers with which a rank goes on, float64 (2). Together
/// the ranks go on with the sums of all ranks of the checkpoint. With as many ranks as before each
/// has its own.
Tensor sums_of_rank(const Checkpoint& from, int rank, int ranks);

/// Returns seed and position of the random numbers with which a rank goes on, int64 (2): its own,
/// or those of another rank where the run had fewer ranks. Images are not drawn from them, but with
/// the numbers of epoch and image.
Tensor random_of_rank(const Checkpoint& from, int rank);

/// Returns what the user is told about another number of ranks: what stays, and what makes a
/// difference to the numbers of the run; empty where the number is the same.
std::string describe_other_ranks(const TrainOptions& options, const Checkpoint& from, int ranks);

}  // namespace tutti::examples
