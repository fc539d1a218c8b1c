// The exit codes of train_resnet. --help and docs/runs.md list them.
#pragma once

#include "options.h"

namespace tutti::examples {

constexpr int exit_success = 0;
/// Anything that neither flags nor data explain: a full disk, a loss that is not finite, another
/// rank that failed.
constexpr int exit_failure = 1;
/// A wrong flag, or data or a checkpoint that cannot be used. Trying again does not help.
constexpr int exit_bad_input = 2;
/// A signal stopped the run, and a checkpoint was written: --resume goes on.
constexpr int exit_stopped = 3;

template <class... Errors>
bool is_any_of(const std::exception& error) {
  return ((dynamic_cast<const Errors*>(&error) != nullptr) || ...);
}

/// Returns the exit code that fits an error.
inline int exit_code_of(const std::exception& error) {
  return is_any_of<UsageError, DataError, CheckpointError, ValueError, DeviceError>(error)
             ? exit_bad_input
             : exit_failure;
}

}  // namespace tutti::examples
