// ModelCard is what a weights file says about its model: which network the weights belong to, the
// names of its classes, and how pictures become its input. It is text in the metadata of a
// safetensors file. The tensors themselves are in core/state_dict.h.
#pragma once

#include "../../core/state_dict.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::nn {

/// What a weights file says about its model. The keys of the metadata are the names of the fields;
/// lists are JSON arrays.
struct ModelCard {
  /// The name of the network, as resnet() or segmentation_network() take it ("resnet50"), or that
  /// of a network of one's own.
  std::string model = {};
  /// The number of logits, at least 1.
  std::int64_t classes = 0;
  /// The number of channels of the pictures, 1 to 1024: 3 for RGB, 1 for grey.
  std::int64_t channels = 0;
  /// The name of each class, in the order of the logits; empty where they have no names.
  std::vector<std::string> class_names = {};
  /// The mean and the standard deviation of each channel, of pixels scaled to [0, 1]. The network
  /// takes (pixel - mean) / std.
  std::vector<double> mean = {}, std = {};
  /// A picture is scaled so that its shorter side has this many pixels, before the centre is
  /// cropped; 0 for no scaling. At least input_size otherwise.
  std::int64_t resize_size = 0;
  /// The side of the square that is cropped from the centre, in pixels, 1 to 16384.
  std::int64_t input_size = 0;

  bool operator==(const ModelCard&) const = default;

  /// Returns the card as metadata for save_safetensors(). Throws a ValueError that names the field
  /// if one is out of range, if the lengths of the lists differ from `classes` and `channels`, or
  /// if a name has control characters or is not UTF-8.
  Metadata to_metadata() const;
  /// Reads a card; other keys are ignored. Throws a CheckpointError that names the key, what was
  /// expected and what came if a key is missing or its value is one that to_metadata() refuses.
  static ModelCard from_metadata(const Metadata& metadata);
};

/// Returns the tensors of a network among those of a file: all of them, or, of the state of a
/// training run (distributed::RunState), its part "model", in which averages of an
/// ExponentialMovingAverage stand in the place of the weights that they average.
StateDict weights_of(const StateDict& file);

}  // namespace tutti::nn
