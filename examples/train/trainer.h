// The trainer: one rank's part of a training run, from seed to weights. A function, so that tests
// can call it under any group; the program around it is train_resnet.cpp.
#pragma once

#include "../data/dataset.h"
#include "options.h"
#include "run_folder.h"

#include <tutti/distributed/process_group.h>

#include <cstdio>

namespace tutti::examples {

struct TrainResult {
  std::vector<Metrics> rows;  ///< the same on every rank
  StateDict state;            ///< this rank's weights and buffers at the end
  double test_accuracy = 0;
};

/// Trains and evaluates. Every rank of `group` calls it with the same options; `options.ranks` is
/// not looked at. The data are the same on every rank; with `options.sharded`, `data.train` is this
/// rank's own. Rank 0 writes the run folder `options.out` (none where that is empty) and to
/// `screen` (nothing where that is null). Error, on every rank, where the loss is no longer finite.
/// Sets the calling thread's number of threads.
TrainResult train(const TrainOptions& options, const Datasets& data, const ProcessGroup& group,
                  std::FILE* screen);

/// The device that a rank trains on: with CUDA one of its own where its host has as many, else it
/// shares one.
Device device_of_rank(const TrainOptions& options, int local_rank);

/// This rank's share of the cores: those it may run on, over the ranks of `group` that may run on
/// the same ones.
int fair_threads(const ProcessGroup& group);

}  // namespace tutti::examples
