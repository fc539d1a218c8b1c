// The weights that a run begins with or tests (--weights, --test-only), and those that it does not
// train (--freeze).
#pragma once

#include "options.h"
#include "training_data.h"

#include <tutti/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace tutti::examples {

/// Returns the names that --model takes with train_segmentation.
const std::vector<std::string>& segmentation_names();

/// Makes the network that options.model names, with random weights. Throws a ValueError for an
/// unknown name.
std::shared_ptr<nn::Layer> make_network(const TrainOptions& options, const TrainingData& data);

/// Loads weights and buffers into `net`, and returns the line that says from where. The file is
/// options.weights, or, with options.test_only and without it, model.safetensors or else the
/// checkpoint of the run folder. It holds a state dict, or is a checkpoint.
///
/// Heads for another number of classes (layers whose entries differ in nothing else) stay as they
/// are in `net`, and the line says so; with options.test_only they are an error. An auxiliary head
/// that only the file or only `net` has is left alone. The weights of a ResNet go into the backbone
/// of a segmentation network. Throws a CheckpointError of one line, which names the file and the
/// entry, and changes nothing, where any other entry is missing, unknown, or of another shape or
/// kind of numbers; and a UsageError where there is no file to test.
std::string load_weights(const TrainOptions& options, const TrainingData& data, nn::Module& net);

/// Throws what the start of a run would throw because of --weights, --test-only or --freeze, so
/// that a program can find out before it starts ranks. `resumes`: the run goes on from a
/// checkpoint, and no other weights are read.
void check_start(const TrainOptions& options, const TrainingData& data, bool resumes);

/// Freezes what the patterns of options.freeze match (nn::freeze). Throws a UsageError where a
/// pattern matches nothing, and where nothing is left to train.
void freeze_layers(const TrainOptions& options, nn::Module& net);

/// Returns a number of at least 0 with its digits in threes: "11,178,051".
std::string grouped(std::int64_t number);

/// Returns "269,722 parameters", or with frozen ones "269,722 parameters, 650 of them trained".
std::string describe_parameters(const nn::Module& net);

/// Returns the parameters that are not frozen.
std::vector<Tensor> trained_parameters(const nn::Module& net);
/// Returns how many of them, the first ones, belong to the backbone of a segmentation network.
std::size_t trained_in_backbone(const nn::Module& net);

}  // namespace tutti::examples
