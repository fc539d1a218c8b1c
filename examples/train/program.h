// The main function of train_resnet and train_segmentation.
#pragma once

#include "options.h"

namespace tutti::examples {

/// Reads the command line, trains or tests as it says, and returns the exit code (trainer.h).
/// Prints each error as one line on standard error. Every process of a launcher calls it.
int run_program(int argc, char** argv, Task task);

}  // namespace tutti::examples
