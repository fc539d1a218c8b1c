// Values of options that belong together: those that suit an optimizer, and recipes that are known
// from papers and other trainers. What a flag has set stays as it is.
#pragma once

#include "option_rules.h"

namespace tutti::examples {

/// Returns the names that --recipe takes.
const std::vector<std::string>& recipe_names();

/// Sets the learning rate, the momentum and the weight decay that suit the optimizer, where no flag
/// has set them.
void set_optimizer_defaults(TrainOptions& options, const FlagGiven& is_given);

/// Sets the options of options.recipe where no flag has set them. "imagenet" is the usual recipe
/// for ResNet-50 on ImageNet: the reference of PyTorch (references/classification: 90 epochs of SGD
/// with a momentum of 0.9 and a weight decay of 1e-4, a learning rate of 0.1 for a batch of 256)
/// with the warm-up of 5 epochs, the linear scaling of the rate with the batch and the last
/// normalisation of each block starting at 0 of Goyal et al., "Accurate, large minibatch SGD"
/// (2017), and with the cosine schedule, the label smoothing of 0.1 and no decay of normalisation
/// and biases of PyTorch's later reference. It averages no weights: where the rate falls to 0 the
/// last weights do as well.
void apply_recipe(TrainOptions& options, const FlagGiven& is_given);

}  // namespace tutti::examples
