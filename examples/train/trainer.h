// The trainer: one rank's part of a training run, from seed to weights. It is a function, so that
// tests can call it under any group; the program around it is train_resnet.cpp.
#pragma once

#include "../data/dataset.h"
#include "options.h"
#include "run_folder.h"

#include <tutti/distributed/process_group.h>

#include <cstdio>

namespace tutti::examples {

struct TrainResult {
  std::vector<Metrics> rows;  ///< The same on every rank.
  StateDict state;            ///< This rank's weights and buffers at the end.
  double test_accuracy = 0;
};

/// Trains and evaluates a network. Every rank of `group` calls it with the same options, of which
/// `ranks` is not read. The data are the same on every rank; with `options.sharded`, `data.train`
/// is this rank's own. Rank 0 writes the run folder `options.out` (none where it is empty) and to
/// `screen` (nothing where it is null). Throws an Error on every rank where the loss is no longer
/// finite. Sets the calling thread's number of threads.
TrainResult train(const TrainOptions& options, const Datasets& data, const ProcessGroup& group,
                  std::FILE* screen);

}  // namespace tutti::examples
