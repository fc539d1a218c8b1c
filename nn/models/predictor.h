// Predictor runs a trained network, which classifies pictures or their pixels: a weights file with
// a ModelCard, or a network and its card. It is what a host program keeps to answer requests from
// many threads. How pictures become numbers is a function of the caller (examples/classify has the
// usual one).
#pragma once

#include "../batch_norm/fold.h"
#include "../module.h"
#include "model_card.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tutti::nn {

/// A class that a picture may show.
struct Prediction {
  std::int64_t label = 0;  ///< the number of the class
  std::string name;        ///< its name, or its number where the card has no names
  double probability = 0;  ///< in [0, 1]
};

/// A trained network that is ready to classify. Its const members may be called from many threads
/// at a time. Each computes with the compute threads of its caller (set_num_threads), and keeps
/// compiled kernels and scratch memory for each thread, so a program should keep its threads, too.
class Predictor {
 public:
  /// Turns a picture, uint8 (height, width, channels) of any size, into the input of the network,
  /// float32 (channels, input_size, input_size), as the card says. It is called from all threads
  /// that classify.
  using Preprocess = std::function<Tensor(const Tensor& picture, const ModelCard& card)>;

  /// Makes the network of a card, with any values, which those of the file replace; its sizes may
  /// follow from `weights`. Returns null for a network that this library makes by its name.
  using MakeNetwork =
      std::function<std::shared_ptr<Layer>(const ModelCard& card, const StateDict& weights)>;

  struct Options {
    Preprocess preprocess = {};     ///< what classify() needs; logits() does without
    bool bf16 = false;              ///< computes in bfloat16, but normalisation in float32
    MakeNetwork make_network = {};  ///< for networks that this library does not know by name
  };

  /// Reads a file of weights or the checkpoint of a training run (weights_of()): makes the network
  /// that its card names (Options::make_network, or nn::resnet and nn::segmentation_network,
  /// without an auxiliary head) and loads the tensors. Throws a CheckpointError that names the file
  /// and what is wrong with it: the file, its card, a network of an unknown name, tensors that do
  /// not fit it.
  Predictor(const std::string& weights_file, Options options);
  explicit Predictor(const std::string& weights_file) : Predictor(weights_file, Options{}) {}
  /// Takes a network of any kind that maps (N, card.channels, H, W) to logits (N, card.classes), or
  /// (N, card.classes, H, W) of pixels.
  /// The Predictor switches it to evaluation, folds its batch normalisation (fold_batch_norm),
  /// changes its dtype and packs its weights (pack_weights); nobody else may run or train it from
  /// then on. Throws a ValueError if
  /// `model` is null or the card is not valid.
  Predictor(std::shared_ptr<Layer> model, ModelCard card, Options options);
  Predictor(std::shared_ptr<Layer> model, ModelCard card)
      : Predictor(std::move(model), std::move(card), Options{}) {}

  const ModelCard& card() const { return card_; }
  /// Which layers of batch normalisation cost no time: folded().to_string() is a line for a log.
  const FoldedBatchNorm& folded() const { return folded_; }

  /// Maps preprocessed pictures (N, channels, H, W) on any device to logits, float32 (N, classes)
  /// or (N, classes, H, W), on the device of the network's first parameter. Throws a ShapeError for
  /// another shape.
  Tensor logits(const Tensor& input) const;
  /// The same after softmax: probabilities, whose sum over the classes is 1.
  Tensor probabilities(const Tensor& input) const;

  /// Returns the `top` most probable classes of a picture, the most probable first; all classes
  /// where there are fewer. `picture` is what the preprocess function takes. Throws a ValueError
  /// without such a function or for `top` below 1, a ShapeError if the function returns another
  /// shape than it should or the network classifies pixels, and an Error if it computes NaN.
  std::vector<Prediction> classify(const Tensor& picture, std::int64_t top = 5) const;
  /// Classifies several pictures in one batch, which costs less than one after the other.
  std::vector<std::vector<Prediction>> classify(const std::vector<Tensor>& pictures,
                                                std::int64_t top = 5) const;

 private:
  struct Model;  // a network and its card
  Predictor(Model model, Options options);
  static Model load(const std::string& weights_file, const MakeNetwork& make_network);
  Device device() const;
  Tensor preprocess(const Tensor& picture) const;

  std::shared_ptr<Layer> model_;
  ModelCard card_;
  Options options_;
  FoldedBatchNorm folded_;
};

}  // namespace tutti::nn
