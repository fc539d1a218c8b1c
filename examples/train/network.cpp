#include "network.h"

#include "../unet.h"
#include "checkpoint.h"
#include "trainer.h"
#include "training_data.h"

#include <tutti/core/did_you_mean.h>
#include <tutti/core/excerpt.h>
#include <tutti/distributed/agreement.h>
#include <tutti/nn/freeze.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/resnet.h>
#include <tutti/nn/segmentation.h>

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

// Reads a state dict, or the network's part of a checkpoint.
WeightsFile read(const std::string& path) {
  WeightsFile file{.path = path};
  const StateDict tensors = load_safetensors(path, &file.metadata);
  if (!is_checkpoint(file.metadata)) {
    file.tensors.insert(tensors.begin(), tensors.end());
    return file;
  }
  // The averages of --ema, where there are any, are the weights that the run tests.
  for (const std::string prefix : {"model.", "ema.average."})
    for (const auto& [name, tensor] : tensors)
      if (name.starts_with(prefix)) file.tensors[name.substr(prefix.size())] = tensor;
  return file;
}

// Takes the prefixes of PyTorch's wrappers from the names.
void remove_wrapper_prefix(Entries& tensors, const StateDict& own) {
  const StateDict state = nn::without_wrapper_prefix({tensors.begin(), tensors.end()}, own);
  tensors = {state.begin(), state.end()};
}

// Adds the counters of batches that old files lack.
void add_counters(Entries& tensors, const StateDict& own) {
  for (const auto& [name, tensor] : own)
    if (name.ends_with("num_batches_tracked")) tensors.emplace(name, tensor);
}

std::string text(const WeightsFile& file, const std::string& key) {
  const auto found = file.metadata.find(key);
  return found == file.metadata.end() ? "" : excerpt(found->second);
}

// ---- The head.

struct Head {
  std::string path;
  nn::Linear* layer = nullptr;
};

Head find_head(nn::Module& net) {
  Head head;
  for (const auto& [path, module] : net.named_modules())
    if (auto* const linear = dynamic_cast<nn::Linear*>(module)) head = {path, linear};
  return head;
}

// Returns the number of classes of the file's head if it differs from the network's in this number
// and in nothing else; 0 otherwise.
std::int64_t classes_of_other_head(const Entries& file, const Head& head) {
  if (!head.layer || !file.contains(head.path + ".weight")) return 0;
  const Shape own = head.layer->weight.shape(), shape = file.at(head.path + ".weight").shape();
  if (shape.size() != 2 || shape[1] != own[1] || shape[0] == own[0]) return 0;
  const auto bias = file.find(head.path + ".bias");
  const bool has_bias = bias != file.end();
  if (has_bias != head.layer->bias.defined()) return 0;
  return has_bias && bias->second.shape() != Shape{shape[0]} ? 0 : shape[0];
}

// ---- What to say.

std::string source_of(const WeightsFile& file) {
  std::string source = text(file, "model");
  if (const std::string dataset = text(file, "dataset"); !dataset.empty())
    source += " on " + dataset;
  if (const std::string step = text(file, "step"); !step.empty())
    source += (source.empty() ? "step " : ", step ") + step;
  return source.empty() ? file.path : fmt::format("{} ({})", file.path, source);
}

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
  const Head head = find_head(net);
  std::string line = "weights from " + source_of(file);
  StateDict own = net.state_dict();
  remove_wrapper_prefix(file.tensors, own);
  const bool is_backbone = !options.test_only && move_to_backbone(file.tensors, net);
  if (is_backbone) {
    std::erase_if(own, [](const auto& entry) { return !entry.first.starts_with(backbone); });
    line += ", for the backbone";
  }
  add_counters(file.tensors, own);
  const std::int64_t classes = options.test_only ? 0 : classes_of_other_head(file.tensors, head);
  if (classes > 0) {
    const auto is_of_head = [&](const auto& e) { return e.first.starts_with(head.path + "."); };
    std::erase_if(file.tensors, is_of_head);
    std::erase_if(own, is_of_head);
    line += fmt::format("; its head '{}' for {} classes is replaced by a fresh one for {}",
                        head.path, classes, data.classes);
  }
  try {
    check_entries({file.tensors.begin(), file.tensors.end()}, own, "",
                  [](const Tensor& given, const Tensor& mine) {
                    return is_floating(given.dtype()) == is_floating(mine.dtype());
                  });
  } catch (const CheckpointError& error) {
    const std::string model = text(file, "model");
    fail<CheckpointError>("cannot use the weights {}: {}; this run is of {}{}", file.path,
                          error.what(), options.model,
                          model.empty() ? "" : ", the file says " + model);
  }
  net.load_state_dict({file.tensors.begin(), file.tensors.end()}, classes == 0 && !is_backbone);
  return line + differences(file, model_card(options, data));
}

std::string load_weights_on_rank_0(const TrainOptions& options, const TrainingData& data,
                                   const ProcessGroup& group, nn::Module& net) {
  std::string line;
  distributed::call_on_all_ranks(
      group, "weights",
      [&] {
        if (group.rank() == 0) line = load_weights(options, data, net);
      },
      exit_code_of);
  return line;
}

void check_start(const TrainOptions& options, const TrainingData& data, bool resumes) {
  const bool reads = (!options.weights.empty() && !resumes) || options.test_only;
  if (!reads && options.freeze.empty()) return;
  const auto net = make_network(options, data);
  if (reads) load_weights(options, data, *net);
  if (!options.freeze.empty()) freeze_layers(options, *net);
}

// ---- frozen layers

namespace {

// Returns patterns and paths that a user may have meant, those of whole layers first.
std::vector<std::string> known_patterns(const nn::Module& net) {
  std::vector<std::string> known;
  for (const auto& [path, module] : net.named_modules())
    if (!path.empty() && !module->named_parameters().empty()) known.push_back(path + ".*");
  for (const auto& [path, parameter] : net.named_parameters()) known.push_back(path);
  return known;
}

[[noreturn]] void refuse(const nn::Module& net, const std::string& pattern) {
  std::vector<std::string> parts;
  std::string meant;
  for (const auto& [name, child] : net.children())
    if (!child->named_parameters().empty()) parts.push_back(name + ".*");
  for (const auto& [path, module] : net.named_modules())
    if (path == pattern) meant = " (did you mean '" + path + ".*'?)";
  if (meant.empty()) meant = did_you_mean(pattern, known_patterns(net));
  fail<UsageError>(
      "--freeze '{}' matches no layer and no parameter{}; the parts of the network are {}",
      excerpt(pattern), meant, fmt::join(parts, ", "));
}

}  // namespace

void freeze_layers(const TrainOptions& options, nn::Module& net) {
  for (const std::string& pattern : options.freeze) try {
      nn::freeze(net, pattern);
    } catch (const ValueError&) {
      refuse(net, pattern);
    }
  if (trained_parameters(net).empty())
    fail<UsageError>(
        "--freeze '{}' leaves no parameter to train; leave a part out, such as the head",
        fmt::join(options.freeze, ","));
}

std::string describe_parameters(const nn::Module& net) {
  std::int64_t trained = 0;
  for (const Tensor& parameter : trained_parameters(net)) trained += parameter.numel();
  const std::int64_t all = net.parameter_count();
  return fmt::format("{} parameters", all) +
         (trained < all ? fmt::format(", {} of them trained", trained) : "");
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
