#include "checkpoint.h"

#include "metrics_table.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/excerpt.h>
#include <tutti/distributed/broadcast_text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

namespace tutti::examples {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* format = "tutti train_resnet 2";

// The metadata of the trainer itself. The optimizer's have the prefix "optimizer.".
constexpr std::array own_metadata = {"format", "options",         "ranks",  "step",
                                     "steps",  "steps_per_epoch", "samples"};

// A checkpoint as the tensors and the metadata of one safetensors file.
struct FileContents {
  StateDict tensors;
  Metadata metadata;
};

// Returns the lists of tensors of a checkpoint, and what their names in the file begin with.
template <class AnyCheckpoint>
auto parts_of(AnyCheckpoint& c) {
  return std::array{std::pair{"model.", &c.model}, std::pair{"optimizer.", &c.optimizer.tensors},
                    std::pair{"scaler.", &c.scaler}, std::pair{"plateau.", &c.plateau},
                    std::pair{"ema.", &c.ema}};
}

FileContents pack(const Checkpoint& c) {
  FileContents packed;
  for (const auto& [prefix, tensors] : parts_of(c))
    for (const auto& [name, tensor] : *tensors) packed.tensors.emplace_back(prefix + name, tensor);
  packed.tensors.emplace_back("random", c.random);
  packed.tensors.emplace_back("sums", c.sums);
  packed.tensors.emplace_back("rows", to_table(c.rows));
  for (const auto& [key, text] : c.optimizer.metadata) packed.metadata["optimizer." + key] = text;
  packed.metadata["ranks"] = std::to_string(c.ranks());
  packed.metadata["step"] = std::to_string(c.step);
  packed.metadata["steps"] = std::to_string(c.steps);
  packed.metadata["steps_per_epoch"] = std::to_string(c.steps_per_epoch);
  packed.metadata["samples"] = std::to_string(c.samples);
  packed.metadata["options"] = c.options;
  packed.metadata.insert(c.data.begin(), c.data.end());
  return packed;
}

// ---- Reading. Everything is checked before a run sees any of it.

const std::string& text(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) fail<CheckpointError>("its metadata have no '{}'", key);
  return found->second;
}

std::int64_t number(const Metadata& metadata, const std::string& key) {
  const std::string& digits = text(metadata, key);
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value < 0)
    fail<CheckpointError>("its metadata have '{}' as '{}', expected a number of at least 0",
                          excerpt(digits), key);
  return value;
}

// Returns `name` without its prefix; empty where it begins otherwise.
std::string without_prefix(const std::string& name, const char* prefix) {
  return name.starts_with(prefix) ? name.substr(std::strlen(prefix)) : std::string();
}

// Returns a tensor of the trainer itself; -1 in `shape` stands for any size.
Tensor find(const StateDict& tensors, const std::string& name, DType dtype, const Shape& shape) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  if (found == tensors.end()) fail<CheckpointError>("tensor '{}' is missing", name);
  const Tensor& tensor = found->second;
  bool fits = tensor.dtype() == dtype && tensor.rank() == static_cast<int>(shape.size());
  for (int d = 0; fits && d < tensor.rank(); ++d)
    fits = shape[d] == -1 || tensor.shape()[d] == shape[d];
  if (!fits)
    fail<CheckpointError>("tensor '{}' is {} {}, expected {} {}", name, to_string(tensor.dtype()),
                          to_string(tensor.shape()), to_string(dtype), to_string(shape));
  return tensor;
}

// Puts a tensor of the network, of what updates it or of its averages where it belongs.
void sort_in(const std::string& name, const Tensor& tensor, Checkpoint& c) {
  if (name == "random" || name == "sums" || name == "rows") return;
  for (const auto& [prefix, tensors] : parts_of(c))
    if (const std::string rest = without_prefix(name, prefix); !rest.empty()) {
      tensors->emplace_back(rest, tensor);
      return;
    }
  fail<CheckpointError>("tensor '{}' does not belong there", excerpt(name));
}

void sort_in(const std::string& key, const std::string& text, Checkpoint& c) {
  if (std::find(own_metadata.begin(), own_metadata.end(), key) != own_metadata.end()) return;
  if (std::ranges::count(data_metadata, key) > 0) {
    c.data[key] = text;
    return;
  }
  const std::string option = without_prefix(key, "optimizer.");
  if (option.empty()) fail<CheckpointError>("metadata '{}' do not belong there", excerpt(key));
  c.optimizer.metadata[option] = text;
}

// Each rank counts at most as many correct answers as all ranks have samples.
void check_sums(const Tensor& sums, std::int64_t samples) {
  const std::vector<double> values = to_vector(sums);
  for (std::size_t rank = 0; 2 * rank < values.size(); ++rank) {
    const double correct = values[2 * rank + 1];
    if (!(correct >= 0 && correct <= static_cast<double>(samples)) ||
        correct != std::floor(correct))
      fail<CheckpointError>(
          "tensor 'sums' counts {} correct answers on rank {}, expected a whole number of 0 to {}",
          correct, rank, samples);
  }
}

Checkpoint unpack(const FileContents& packed) {
  Checkpoint c;
  for (const auto& [name, tensor] : packed.tensors) sort_in(name, tensor, c);
  for (const auto& [key, value] : packed.metadata) sort_in(key, value, c);
  if (c.model.empty()) fail<CheckpointError>("tensors 'model.*' are missing");
  c.step = number(packed.metadata, "step");
  c.steps = number(packed.metadata, "steps");
  if (c.step > c.steps) fail<CheckpointError>("it claims to be at step {} of {}", c.step, c.steps);
  c.steps_per_epoch = number(packed.metadata, "steps_per_epoch");
  c.samples = number(packed.metadata, "samples");
  c.options = text(packed.metadata, "options");
  if (!c.data.empty())
    for (const char* key : data_metadata) text(packed.metadata, key);  // throws if it is missing
  const std::int64_t ranks = number(packed.metadata, "ranks");
  if (ranks == 0) fail<CheckpointError>("its metadata have 'ranks' as 0, expected at least 1");
  c.random = find(packed.tensors, "random", int64, {ranks, 2});
  c.sums = find(packed.tensors, "sums", float64, {ranks, 2});
  check_sums(c.sums, c.samples);
  c.rows = rows_from_table(find(packed.tensors, "rows", float64, {-1, metrics_columns}), c.step);
  return c;
}

// A step has at most the global batch, or one sample of each rank where that is smaller.
void check_samples(const TrainOptions& options, const Checkpoint& c) {
  const std::int64_t most = std::max<std::int64_t>(options.batch_size, c.ranks());
  if (c.samples / most > c.step)
    fail<CheckpointError>("its metadata have {} samples after {} steps of at most {}", c.samples,
                          c.step, most);
}

}  // namespace

std::string checkpoint_path(const TrainOptions& options) {
  return options.out + "/checkpoint.safetensors";
}

bool is_checkpoint(const Metadata& metadata) {
  const auto found = metadata.find("format");
  return found != metadata.end() && found->second == format;
}

void save_checkpoint(const TrainOptions& options, const Checkpoint& checkpoint) {
  save_checkpoint(options, checkpoint, checkpoint_path(options));
}

void save_checkpoint(const TrainOptions& options, const Checkpoint& checkpoint,
                     const std::string& path) {
  FileContents packed = pack(checkpoint);
  packed.metadata["format"] = format;
  packed.metadata["options"] = options_of_checkpoint(options);
  save_safetensors(path, packed.tensors, packed.metadata);
}

std::optional<Checkpoint> load_checkpoint(const TrainOptions& options) {
  const std::string path = checkpoint_path(options);
  std::error_code ignored;  // a file that cannot be examined is refused by load_safetensors
  if (options.out.empty() ||
      std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found)
    return {};
  FileContents packed;
  packed.tensors = load_safetensors(path, &packed.metadata);
  try {
    if (!is_checkpoint(packed.metadata))
      fail<CheckpointError>("it is no checkpoint of this trainer");
    check_same_options(options, text(packed.metadata, "options"));
    Checkpoint checkpoint = unpack(packed);
    check_samples(options, checkpoint);
    return checkpoint;
  } catch (const CheckpointError& error) {
    refuse_checkpoint(options, error.what());
  }
}

std::string tensor_not_finite(const Checkpoint& c) {
  const NoGrad no_grad;
  for (const auto& [prefix, tensors] : parts_of(c))
    if (tensors != &c.plateau)  // whose best loss is infinite before the first test
      for (const auto& [name, tensor] : *tensors)
        if (is_floating(tensor.dtype()) && !std::isfinite(sum(tensor * 0.0).item<double>()))
          return prefix + name;
  return {};
}

void refuse_checkpoint(const TrainOptions& options, const std::string& reason) {
  fail<CheckpointError>(
      "cannot resume from {}: {}; choose another run folder with --out, or leave out --resume",
      checkpoint_path(options), reason);
}

// First travels a list of what the checkpoint holds, then every tensor.
std::optional<Checkpoint> broadcast_checkpoint(std::optional<Checkpoint> mine,
                                               const ProcessGroup& group) {
  FileContents packed;
  std::string list;
  if (mine) {
    packed = pack(*mine);
    Json json{{"metadata", packed.metadata}, {"tensors", Json::array()}};
    for (const auto& [name, tensor] : packed.tensors) {
      std::vector<std::int64_t> shape(tensor.shape().begin(), tensor.shape().end());
      json["tensors"].push_back({name, to_string(tensor.dtype()), shape});
    }
    list = json.dump();
  }
  list = distributed::broadcast_text(group, list, "checkpoint");
  if (list.empty()) return {};
  if (!mine) {
    const Json json = Json::parse(list);
    packed.metadata = json["metadata"].get<Metadata>();
    for (const Json& each : json["tensors"])
      packed.tensors.emplace_back(each[0].get<std::string>(),
                                  empty(Shape(each[2].get<std::vector<std::int64_t>>()),
                                        {.dtype = dtype_from_string(each[1].get<std::string>())}));
  }
  for (const auto& [name, tensor] : packed.tensors)
    group.broadcast(tensor, 0, {.name = name}).wait();
  return unpack(packed);
}

}  // namespace tutti::examples
