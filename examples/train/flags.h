// The flags of train_resnet, in groups. Each function adds the flags of one group to the command
// line, in the order of the help text, and each group has a file of its own. What several flags
// mean together is checked in options.cpp.
#pragma once

#include "options.h"

#include <CLI/CLI.hpp>

namespace tutti::examples {

void add_data_flags(CLI::App& app, TrainOptions& o);          // flags_data.cpp
void add_augmentation_flags(CLI::App& app, TrainOptions& o);  // flags_augmentation.cpp
void add_length_flags(CLI::App& app, TrainOptions& o);        // flags_length.cpp
void add_optimizer_flags(CLI::App& app, TrainOptions& o);     // flags_optimizer.cpp
void add_rank_flags(CLI::App& app, TrainOptions& o);          // flags_ranks.cpp
void add_batch_norm_flags(CLI::App& app, TrainOptions& o);    // flags_batch_norm.cpp
void add_device_flags(CLI::App& app, TrainOptions& o);        // flags_device.cpp
void add_weights_flags(CLI::App& app, TrainOptions& o);       // flags_weights.cpp
void add_output_flags(CLI::App& app, TrainOptions& o);        // flags_output.cpp

}  // namespace tutti::examples
