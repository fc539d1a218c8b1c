// How the images of a step are divided among ranks and micro batches. Batch normalisation has no
// variance where such a part has one image and maps have one position. This file finds such parts
// before the first step.
#pragma once

#include "dataset.h"
#include "options.h"

#include <tutti/distributed/process_group.h>

#include <vector>

namespace tutti::examples {

/// Returns the number of micro batches of a step. It is the same on all ranks, and so small that
/// some rank has an image of every micro batch: one without images has no batch statistics. A short
/// last batch gets fewer micro batches of about the usual size, except with --sharded, where ranks
/// may share a short batch unevenly, so that some have a whole batch to divide.
std::int64_t micro_batches(const TrainOptions& options, std::int64_t ranks,
                           std::int64_t global_size);

/// Returns the number of steps of an epoch with so many training images, on ranks with the parts
/// that shard() gives them if options.sharded.
std::int64_t steps_per_epoch(const TrainOptions& options, std::int64_t ranks, std::int64_t images);

/// Returns the first step of an epoch that the run makes, counted from 1, in which ranks of one
/// scope have one image of a micro batch together; 0 if there is none. `scopes` has for each rank a
/// number that is that of the ranks with which it shares batch statistics.
std::int64_t step_with_a_lone_image(const TrainOptions& options,
                                    const std::vector<std::int64_t>& scopes, std::int64_t images);

/// Throws RefusedOnAllRanks, which names the flag that helps, if a step would normalise over one
/// value per channel, or a batch that --recompute-statistics or --bn-report examine, or if
/// --drop-last leaves no batch. Every rank calls it with the whole data. This call is collective.
void check_batches(const TrainOptions& options, const TrainingData& data,
                   const ProcessGroup& group);

}  // namespace tutti::examples
