// freeze() keeps the parameters and layers whose paths match a pattern as they are. Freezing a part
// of a model is how a trained network is adapted to another task.
#pragma once

#include "module.h"

namespace tutti::nn {

/// Returns whether `path` matches `pattern`, in which '*' stands for any characters, '?' for one,
/// and [abc] for one of several: "layer1.*" matches "layer1.0.conv1.weight".
bool matches(const std::string& path, const std::string& pattern);

/// Freezes what matches `pattern`, or with `on` false undoes that: a matching parameter requires no
/// gradient, and a BatchNorm whose own path or any of whose parameters matches is frozen as a whole
/// (BatchNorm::freeze), because a layer with a fixed weight must not go on moving its statistics.
/// Returns the paths of the parameters. Call it before the optimizer and DataParallel are made.
/// ValueError if nothing matches.
std::vector<std::string> freeze(Module& module, const std::string& pattern = "*", bool on = true);

}  // namespace tutti::nn
