#include "network.h"

#include "../unet.h"
#include "checkpoint.h"
#include "trainer.h"
#include "training_data.h"

#include <tutti/core/excerpt.h>
#include <tutti/distributed/run_state.h>
#include <tutti/nn/freeze.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/nn/models/segmentation.h>

#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

namespace tutti::examples {

const std::vector<std::string>& segmentation_names() {
  static const std::vector<std::string> names{"fcn_resnet50", "fcn_resnet101", "deeplabv3_resnet50",
                                              "deeplabv3_resnet101", "unet"};
  return names;
}

std::shared_ptr<nn::Layer> make_network(const TrainOptions& o, const TrainingData& data) {
  if (o.task == Task::classification)
    return nn::resnet(
        o.model,
        {.classes = data.classes, .channels = data.channels, .zero_init_residual = o.zero_init});
  const SegmentationOptions& s = o.segmentation;
  if (o.model == "unet")
    return std::make_shared<UNet>(
        UNet::Options{.channels = data.channels, .classes = data.classes, .width = s.width});
  return nn::segmentation_network(
      o.model, {.classes = data.classes, .auxiliary = s.auxiliary > 0, .channels = data.channels});
}

namespace {

using Entries = std::map<std::string, Tensor>;

const std::string backbone = "backbone.";  // what its entries begin with

struct WeightsFile {
  std::string path;
  Entries tensors = {};
  Metadata metadata = {};
};

// ---- Reading.

bool exists(const std::string& path) {
  std::error_code ignored;  // a file that cannot be examined is refused by load_safetensors()
  return std::filesystem::status(path, ignored).type() != std::filesystem::file_type::not_found;
}

std::string path_of(const TrainOptions& options) {
  if (!options.weights.empty()) return options.weights;
  const std::string model = options.out + "/model.safetensors";
  if (exists(model)) return model;
  if (exists(checkpoint_path(options))) return checkpoint_path(options);
  fail<UsageError>(
      "--test-only finds neither model.safetensors nor checkpoint.safetensors in the run folder "
      "{}: name the folder with --out, or a file with --weights",
      options.out);
}

// Reads a state dict, or of a checkpoint the weights that its run tests.
WeightsFile read(const std::string& path) {
  WeightsFile file{.path = path};
  const StateDict weights = nn::weights_of(load_safetensors(path, &file.metadata));
  file.tensors.insert(weights.begin(), weights.end());
  return file;
}

// Adds the counters of batches that old files lack.
void add_counters(Entries& tensors, const StateDict& own) {
  for (const auto& [name, tensor] : own)
    if (name.ends_with("num_batches_tracked")) tensors.emplace(name, tensor);
}

// ---- Heads.

template <class Tensors>
bool has_layer(const Tensors& tensors, const std::string& prefix) {
  return std::ranges::any_of(tensors, [&](const auto& e) { return e.first.starts_with(prefix); });
}

template <class Tensors>
void erase_layer(Tensors& tensors, const std::string& prefix) {
  std::erase_if(tensors, [&](const auto& e) { return e.first.starts_with(prefix); });
}

// Returns the number of classes for which the file has a layer, "head." for example, that the
// network has for `classes`; 0 where the two differ in anything else, or not at all.
std::int64_t classes_of_other_head(const Entries& file, const StateDict& own,
                                   const std::string& prefix, std::int64_t classes) {
  std::int64_t others = 0, count = 0;
  for (const auto& [name, mine] : own) {
    if (!name.starts_with(prefix)) continue;
    const auto found = file.find(name);
    if (found == file.end() || mine.rank() == 0 || mine.size(0) != classes) return 0;
    Shape shape = found->second.shape();
    if (shape.size() != mine.shape().size() || (others > 0 && shape[0] != others)) return 0;
    others = shape[0];
    shape[0] = classes;
    if (shape != mine.shape()) return 0;
    ++count;
  }
  const auto of_file = std::ranges::count_if(
      file, [&](const auto& entry) { return entry.first.starts_with(prefix); });
  return others != classes && of_file == count ? others : 0;
}

// Takes the heads for another number of classes from both, so that they stay as they are in the
// network. Returns the text that says so.
std::string drop_other_heads(Entries& file, StateDict& own, std::int64_t classes) {
  std::vector<std::string> heads;
  std::int64_t others = 0;
  for (const auto& [name, tensor] : StateDict(own)) {
    const std::string prefix = name.substr(0, name.rfind('.') + 1);
    if (prefix.empty() || !has_layer(own, prefix)) continue;
    const std::int64_t found = classes_of_other_head(file, own, prefix, classes);
    if (found == 0 || (others > 0 && found != others)) continue;
    others = found;
    heads.push_back("'" + prefix.substr(0, prefix.size() - 1) + "'");
    erase_layer(file, prefix);
    erase_layer(own, prefix);
  }
  if (heads.empty()) return {};
  const bool is_one = heads.size() == 1;
  return fmt::format("; its head{} {} for {} classes {} replaced by {} for {}", is_one ? "" : "s",
                     fmt::join(heads, ", "), others, is_one ? "is" : "are",
                     is_one ? "a fresh one" : "fresh ones", classes);
}

// Takes an auxiliary head from the file or the network where the other has none. Returns the text
// that says so.
std::string drop_lone_auxiliary_head(Entries& file, StateDict& own) {
  const std::string prefix = "aux_classifier.";
  const bool in_file = has_layer(file, prefix), in_network = has_layer(own, prefix);
  if (in_file == in_network) return {};
  if (in_file) erase_layer(file, prefix);
  else erase_layer(own, prefix);
  return in_file ? "; its auxiliary head is left out (--auxiliary-loss 0.5 takes it)"
                 : "; it has no auxiliary head: that of --auxiliary-loss is fresh";
}

// ---- What to say.

// Some programs keep the numbers of a card in float32.
bool are_close(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, [](double x, double y) { return std::abs(x - y) < 1e-6; });
}

// Returns the fields of the file's model card in which the run differs and which no entry shows.
std::string differences(const WeightsFile& file, const nn::ModelCard& own) {
  nn::ModelCard card;
  try {
    card = nn::ModelCard::from_metadata(file.metadata);
  } catch (const CheckpointError&) {
    return {};  // weights need no card
  }
  std::string names;
  const auto add = [&](const char* name, bool differs) {
    if (differs) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  add("class_names", card.classes == own.classes && card.class_names != own.class_names);
  add("mean", !are_close(card.mean, own.mean));
  add("std", !are_close(card.std, own.std));
  add("resize_size", card.resize_size != own.resize_size);
  add("input_size", card.input_size != own.input_size);
  return names.empty() ? "" : fmt::format("\nthe file's model card differs in {}", names);
}

// Makes the entries of a ResNet's file those of a backbone, without its head. Returns whether they
// are to be loaded so.
bool move_to_backbone(Entries& file, const nn::Module& net) {
  if (!dynamic_cast<const nn::SegmentationNetwork*>(&net) || !file.contains("conv1.weight"))
    return false;
  Entries moved;
  for (const auto& [name, tensor] : file)
    if (!name.starts_with("fc.")) moved[backbone + name] = tensor;
  file = std::move(moved);
  return true;
}

}  // namespace

std::string load_weights(const TrainOptions& options, const TrainingData& data, nn::Module& net) {
  WeightsFile file = read(path_of(options));
  std::string line = "weights from " + file.path;
  StateDict own = net.state_dict();
  const StateDict named =
      nn::without_wrapper_prefix({file.tensors.begin(), file.tensors.end()}, own);
  file.tensors = {named.begin(), named.end()};
  const bool is_backbone = !options.test_only && move_to_backbone(file.tensors, net);
  if (is_backbone) {
    std::erase_if(own, [](const auto& entry) { return !entry.first.starts_with(backbone); });
    line += ", for the backbone";
  }
  const std::size_t entries = own.size();
  if (options.task == Task::segmentation) line += drop_lone_auxiliary_head(file.tensors, own);
  add_counters(file.tensors, own);  // after the heads, so that no head seems to be in the file
  if (!options.test_only) line += drop_other_heads(file.tensors, own, data.classes);
  try {
    check_entries({file.tensors.begin(), file.tensors.end()}, own, "",
                  [](const Tensor& given, const Tensor& mine) {
                    return is_floating(given.dtype()) == is_floating(mine.dtype());
                  });
    const std::string ruined = distributed::not_finite({file.tensors.begin(), file.tensors.end()});
    if (!ruined.empty() && !options.test_only)
      fail<CheckpointError>("tensor '{}' has numbers that are not finite", ruined);
  } catch (const CheckpointError& error) {
    const std::string model = excerpt(file.metadata["model"]);
    fail<CheckpointError>("cannot use the weights {}: {}; this run is of {}{}", file.path,
                          error.what(), options.model,
                          model.empty() ? "" : ", the file says " + model);
  }
  net.load_state_dict({file.tensors.begin(), file.tensors.end()},
                      !is_backbone && own.size() == entries);
  return line + differences(file, model_card(options, data));
}

void check_start(const TrainOptions& options, const TrainingData& data, bool resumes) {
  const bool reads = (!options.weights.empty() && !resumes) || options.test_only;
  if (!reads && options.freeze.empty()) return;
  const auto net = make_network(options, data);
  if (reads) load_weights(options, data, *net);
  if (!options.freeze.empty()) freeze_layers(options, *net);
}

// ---- frozen layers

void freeze_layers(const TrainOptions& options, nn::Module& net) {
  for (const std::string& pattern : options.freeze) try {
      nn::freeze(net, pattern);
    } catch (const ValueError& error) {
      fail<UsageError>("--{}", error.what());  // it begins with "freeze"
    }
  if (trained_parameters(net).empty())
    fail<UsageError>(
        "--freeze '{}' leaves no parameter to train; leave a part out, such as the head",
        fmt::join(options.freeze, ","));
}

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string describe_parameters(const nn::Module& net) {
  std::int64_t trained = 0;
  for (const Tensor& parameter : trained_parameters(net)) trained += parameter.numel();
  const std::int64_t all = net.parameter_count();
  return grouped(all) + " parameters" +
         (trained < all ? fmt::format(", {} of them trained", grouped(trained)) : "");
}

std::vector<Tensor> trained_parameters(const nn::Module& net) {
  std::vector<Tensor> trained;
  for (const Tensor& parameter : net.parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  return trained;
}

std::size_t trained_in_backbone(const nn::Module& net) {
  return static_cast<std::size_t>(
      std::ranges::count_if(net.named_parameters(), [](const auto& parameter) {
        return parameter.first.starts_with(backbone) && parameter.second.requires_grad();
      }));
}

}  // namespace tutti::examples
