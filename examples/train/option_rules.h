// Which flags of train_resnet go together. A flag that would do nothing, or that contradicts
// another one, is refused by name, so that nobody waits for a run that is not the one meant. The
// values of single flags are checked by the flags_*.cpp.
#pragma once

#include "options.h"

#include <functional>

namespace tutti::examples {

/// Returns whether the command line has this flag.
using FlagGiven = std::function<bool(const char* flag)>;

/// Throws a UsageError that names both flags unless all given flags go together.
void check_option_rules(const TrainOptions& options, const FlagGiven& is_given);

}  // namespace tutti::examples
