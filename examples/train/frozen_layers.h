// The layers that --freeze keeps from training, and the parameters that are left to train.
#pragma once

#include "options.h"

#include <tutti/nn/module.h>

namespace tutti::examples {

/// Freezes what the patterns of options.freeze match (nn::freeze). Throws a UsageError that names
/// the pattern and near names where one matches nothing, and one where nothing is left to train.
void freeze_layers(const TrainOptions& options, nn::Module& net);

/// Returns "269722 parameters", or with frozen ones "269722 parameters, 650 of them trained".
std::string describe_parameters(const nn::Module& net);

/// Returns the parameters that are not frozen.
std::vector<Tensor> trained_parameters(const nn::Module& net);

}  // namespace tutti::examples
