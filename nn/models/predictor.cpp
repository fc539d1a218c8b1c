#include "predictor.h"

#include "../../autograd/functions.h"
#include "../../autograd/grad_mode.h"
#include "../../autograd/indexing.h"
#include "../../core/excerpt.h"
#include "../../core/random.h"
#include "../batch_norm/fold.h"
#include "../pack_weights.h"
#include "resnet.h"
#include "segmentation.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace tutti::nn {
namespace {

// Throws unless the file has the tensor, with this size in dimension `dim`. A card that claims a
// giant network is refused before memory is allocated for the network.
void expect_size(const StateDict& state, const char* name, int dim, const char* key,
                 std::int64_t size) {
  const auto found =
      std::ranges::find_if(state, [&](const auto& entry) { return entry.first == name; });
  if (found == state.end())
    fail<CheckpointError>("expected a tensor '{}', but there is none", name);
  const Shape& shape = found->second.shape();
  if (shape.size() <= dim || shape[dim] != size)
    fail<CheckpointError>("model card: '{}' is {}, but tensor '{}' has shape {}", key, size, name,
                          to_string(shape));
}

bool is_among(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

std::shared_ptr<Layer> make_known_network(const ModelCard& card, const StateDict& state) {
  if (is_among(resnet_names(), card.model)) {
    expect_size(state, "conv1.weight", 1, "channels", card.channels);
    expect_size(state, "fc.weight", 0, "classes", card.classes);
    return resnet(card.model, {.classes = card.classes, .channels = card.channels});
  }
  if (is_among(segmentation_network_names(), card.model)) {
    expect_size(state, "backbone.conv1.weight", 1, "channels", card.channels);
    expect_size(state, "classifier.4.weight", 0, "classes", card.classes);
    return segmentation_network(card.model, {.classes = card.classes, .channels = card.channels});
  }
  fail<CheckpointError>(
      "model card: expected 'model' to be one of {}, {}, got '{}'; give a Predictor of any other "
      "network its Options::make_network",
      fmt::join(resnet_names(), ", "), fmt::join(segmentation_network_names(), ", "),
      excerpt(card.model));
}

std::shared_ptr<Layer> make_network(const ModelCard& card, StateDict state,
                                    const Predictor::MakeNetwork& make) {
  // The first weights are drawn and then replaced. The caller's random numbers go on as before.
  const Generator::State random = default_generator().state();
  auto model = make ? make(card, state) : nullptr;
  if (!model) model = make_known_network(card, state);
  default_generator().set_state(random);
  // The auxiliary head of a segmentation network serves training alone.
  if (dynamic_cast<const SegmentationNetwork*>(model.get()))
    std::erase_if(state, [](const auto& e) { return e.first.starts_with("aux_classifier."); });
  model->load_state_dict(state);
  return model;
}

}  // namespace

struct Predictor::Model {
  std::shared_ptr<Layer> layers;
  ModelCard card;
};

Predictor::Model Predictor::load(const std::string& weights_file, const MakeNetwork& make) {
  Metadata metadata;
  const StateDict state = load_safetensors(weights_file, &metadata);  // its errors name the file
  try {
    const ModelCard card = ModelCard::from_metadata(metadata);
    return {make_network(card, weights_of(state), make), card};
  } catch (const CheckpointError& error) {
    fail<CheckpointError>("{}: {}", weights_file, error.what());
  }
}

Predictor::Predictor(const std::string& weights_file, Options options)
    : Predictor(load(weights_file, options.make_network), options) {}

Predictor::Predictor(std::shared_ptr<Layer> model, ModelCard card, Options options)
    : Predictor(Model{std::move(model), std::move(card)}, std::move(options)) {}

Predictor::Predictor(Model model, Options options)
    : model_(std::move(model.layers)), card_(std::move(model.card)), options_(std::move(options)) {
  if (!model_) fail<ValueError>("Predictor: expected a model, got a null pointer");
  static_cast<void>(card_.to_metadata());  // throws for a card that is not valid
  model_->eval();
  folded_ = fold_batch_norm(*model_);
  if (options_.bf16) model_->to(bfloat16);
  pack_weights(*model_);
}

// The caller may have moved the network to another device.
Device Predictor::device() const {
  const std::vector<Tensor> parameters = model_->parameters();
  return parameters.empty() ? Device::cpu() : parameters.front().device();
}

Tensor Predictor::logits(const Tensor& input) const {
  if (input.rank() != 4 || input.size(1) != card_.channels)
    fail<ShapeError>("Predictor: expected pictures of shape (N, {}, H, W), got {}", card_.channels,
                     to_string(input.shape()));
  const NoGrad no_grad;
  // oneDNN is faster where the channels are last in memory.
  const Tensor x = input.to(device())
                       .to(options_.bf16 ? bfloat16 : float32)
                       .contiguous(MemoryFormat::channels_last);
  const Tensor y = (*model_)(x);
  const bool has_rank = y.rank() == 2 || y.rank() == 4;
  if (!has_rank || y.size(0) != input.size(0) || y.size(1) != card_.classes)
    fail<ShapeError>(
        "Predictor: expected logits of shape ({0}, {1}) or ({0}, {1}, H, W) from {2}, "
        "got {3}",
        input.size(0), card_.classes, model_->error_name(), to_string(y.shape()));
  return y.to(float32);
}

Tensor Predictor::probabilities(const Tensor& input) const {
  const NoGrad no_grad;
  return softmax(logits(input), 1);
}

Tensor Predictor::preprocess(const Tensor& picture) const {
  Tensor input = options_.preprocess(picture, card_);
  const Shape expected{card_.channels, card_.input_size, card_.input_size};
  if (!input.defined() || !(input.shape() == expected))
    fail<ShapeError>("Predictor: expected the preprocess function to return shape {}, got {}",
                     to_string(expected),
                     input.defined() ? to_string(input.shape()) : "an undefined tensor");
  return input;
}

std::vector<Prediction> Predictor::classify(const Tensor& picture, std::int64_t top) const {
  return classify(std::vector<Tensor>{picture}, top)[0];
}

std::vector<std::vector<Prediction>> Predictor::classify(const std::vector<Tensor>& pictures,
                                                         std::int64_t top) const {
  if (!options_.preprocess)
    fail<ValueError>(
        "Predictor::classify: expected Options::preprocess, got none; without it call "
        "logits() with pictures that are preprocessed");
  if (top < 1) fail<ValueError>("Predictor::classify: expected `top` of at least 1, got {}", top);
  if (pictures.empty()) return {};
  std::vector<Tensor> inputs;
  for (const Tensor& picture : pictures) inputs.push_back(preprocess(picture));
  const NoGrad no_grad;
  const std::int64_t count = std::min(top, card_.classes);
  const Tensor all = probabilities(stack(inputs)).to(Device::cpu());
  if (all.rank() != 2)
    fail<ShapeError>(
        "Predictor::classify: {} gives logits {}, of each pixel; call logits() or probabilities()",
        model_->error_name(), to_string(all.shape()));
  const auto [values, labels] = topk(all, count, 1);
  std::vector<std::vector<Prediction>> result(pictures.size());
  for (std::int64_t i = 0; i < labels.numel(); ++i) {
    const auto label = static_cast<std::size_t>(labels.data<std::int64_t>()[i]);
    const float probability = values.data<float>()[i];
    if (std::isnan(probability))
      fail<Error>(
          "Predictor: the network computed NaN; its weights or the picture's input have it");
    result[static_cast<std::size_t>(i / count)].push_back(
        {.label = static_cast<std::int64_t>(label),
         .name = card_.class_names.empty() ? std::to_string(label) : card_.class_names[label],
         .probability = probability});
  }
  return result;
}

}  // namespace tutti::nn
