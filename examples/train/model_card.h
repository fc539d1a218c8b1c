// The model card of a run: what its weights file says about the network, its classes and how
// pictures become its input, so that nn::Predictor can use the file alone.
#pragma once

#include "dataset.h"
#include "options.h"

#include <tutti/nn/model_card.h>

namespace tutti::examples {

/// Returns the card of the network that `options` train on `data`. Throws a DataError of one line
/// for a class name that a card cannot hold: one that is not UTF-8 or has control characters.
nn::ModelCard model_card(const TrainOptions& options, const TrainingData& data);

}  // namespace tutti::examples
