#include "checkpoint.h"

#include <tutti/core/create.h>
#include <tutti/distributed/broadcast_text.h>

#include <nlohmann/json.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

namespace tutti::examples {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* format = "tutti train_resnet 1";
constexpr std::int64_t columns = 8;  // of the table that holds the rows of metrics

// Options that may change when a run is resumed. A change of any other makes it another run.
constexpr std::array options_that_may_change = {
    "data", "ranks", "threads", "device", "log_every", "checkpoint_every", "out"};

Json comparable(const TrainOptions& o) {
  Json json = Json::parse(to_json(o));
  for (const char* name : options_that_may_change) json.erase(name);
  return json;
}

Tensor to_tensor(const std::vector<Metrics>& rows) {
  const Tensor table = empty({static_cast<std::int64_t>(rows.size()), columns}, {.dtype = float64});
  double* at = table.data<double>();
  for (const Metrics& m : rows)
    for (const double value : {static_cast<double>(m.epoch), static_cast<double>(m.step),
                               m.train_loss, m.train_accuracy, m.images_per_second, m.learning_rate,
                               m.test_loss.value_or(NAN), m.test_accuracy.value_or(NAN)})
      *at++ = value;
  return table;
}

std::vector<Metrics> to_rows(const Tensor& table) {
  std::vector<Metrics> rows;
  const auto known = [](double value) {
    return std::isnan(value) ? std::optional<double>() : value;
  };
  for (std::int64_t r = 0; r < table.size(0); ++r) {
    const double* v = table.data<double>() + r * columns;
    rows.push_back({.epoch = static_cast<std::int64_t>(v[0]),
                    .step = static_cast<std::int64_t>(v[1]),
                    .train_loss = v[2],
                    .train_accuracy = v[3],
                    .images_per_second = v[4],
                    .learning_rate = v[5],
                    .test_loss = known(v[6]),
                    .test_accuracy = known(v[7])});
  }
  return rows;
}

// A checkpoint as the tensors and the metadata of one safetensors file.
struct FileContents {
  StateDict tensors;
  Metadata metadata;
};

FileContents pack(const Checkpoint& c) {
  FileContents packed;
  for (const auto& [name, tensor] : c.model) packed.tensors.emplace_back("model." + name, tensor);
  for (const auto& [name, tensor] : c.optimizer.tensors)
    packed.tensors.emplace_back("optimizer." + name, tensor);
  for (const auto& [name, tensor] : c.scaler) packed.tensors.emplace_back("scaler." + name, tensor);
  packed.tensors.emplace_back("random", c.random);
  packed.tensors.emplace_back("sums", c.sums);
  packed.tensors.emplace_back("rows", to_tensor(c.rows));
  for (const auto& [key, text] : c.optimizer.metadata) packed.metadata["optimizer." + key] = text;
  packed.metadata["step"] = std::to_string(c.step);
  packed.metadata["steps"] = std::to_string(c.steps);
  packed.metadata["samples"] = std::to_string(c.samples);
  return packed;
}

std::int64_t number(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  std::int64_t value = -1;
  const std::string text = found == metadata.end() ? "" : found->second;
  std::from_chars(text.data(), text.data() + text.size(), value);
  if (value < 0) fail<CheckpointError>("its metadata have no number '{}'", key);
  return value;
}

// Returns `name` without its prefix; empty where it begins otherwise.
std::string without_prefix(const std::string& name, const char* prefix) {
  return name.starts_with(prefix) ? name.substr(std::strlen(prefix)) : std::string();
}

// Puts one tensor of the file where it belongs.
void unpack_tensor(const std::string& name, const Tensor& tensor, int ranks, Checkpoint& c) {
  const auto is = [&](const char* expected, DType dtype, const Shape& shape) {
    return name == expected && tensor.dtype() == dtype && tensor.shape() == shape;
  };
  if (const std::string model = without_prefix(name, "model."); !model.empty())
    c.model.emplace_back(model, tensor);
  else if (const std::string state = without_prefix(name, "optimizer."); !state.empty())
    c.optimizer.tensors.emplace_back(state, tensor);
  else if (const std::string scaler = without_prefix(name, "scaler."); !scaler.empty())
    c.scaler.emplace_back(scaler, tensor);
  else if (is("random", int64, {ranks, 2})) c.random = tensor;
  else if (is("sums", float64, {ranks, 2})) c.sums = tensor;
  else if (tensor.shape().size() == 2 && is("rows", float64, {tensor.size(0), columns}))
    c.rows = to_rows(tensor);
  else
    fail<CheckpointError>("tensor '{}' of shape {} does not belong there", name,
                          to_string(tensor.shape()));
}

Checkpoint unpack(const FileContents& packed, int ranks) {
  Checkpoint c;
  for (const auto& [name, tensor] : packed.tensors) unpack_tensor(name, tensor, ranks, c);
  if (!c.random.defined() || !c.sums.defined() || c.model.empty())
    fail<CheckpointError>("it is not complete");
  for (const auto& [key, text] : packed.metadata)
    if (const std::string option = without_prefix(key, "optimizer."); !option.empty())
      c.optimizer.metadata[option] = text;
  c.step = number(packed.metadata, "step");
  c.steps = number(packed.metadata, "steps");
  if (c.step > c.steps) fail<CheckpointError>("it claims to be at step {} of {}", c.step, c.steps);
  c.samples = number(packed.metadata, "samples");
  return c;
}

void check_same_run(const TrainOptions& options, int ranks, const Metadata& metadata) {
  const auto text = [&](const char* key) {
    return metadata.contains(key) ? metadata.at(key) : std::string();
  };
  if (text("format") != format) fail<CheckpointError>("it is no checkpoint of this trainer");
  const Json before = Json::parse(text("options"), nullptr, false), now = comparable(options);
  if (!before.is_object()) fail<CheckpointError>("its options cannot be read");
  for (const auto& [name, value] : now.items())
    if (!before.contains(name) || before[name] != value)
      fail<CheckpointError>("it is of a run with {} = {}, this one has {}", name,
                            before.contains(name) ? before[name].dump() : "nothing", value.dump());
  if (number(metadata, "ranks") != ranks)
    fail<CheckpointError>("it is of a run on {} ranks, this one has {}", number(metadata, "ranks"),
                          ranks);
}

}  // namespace

std::string checkpoint_path(const TrainOptions& options) {
  return options.out + "/checkpoint.safetensors";
}

void save_checkpoint(const TrainOptions& options, const Checkpoint& checkpoint) {
  FileContents packed = pack(checkpoint);
  packed.metadata["format"] = format;
  packed.metadata["options"] = comparable(options).dump();
  packed.metadata["ranks"] = std::to_string(checkpoint.random.size(0));
  save_safetensors(checkpoint_path(options), packed.tensors, packed.metadata);
}

std::optional<Checkpoint> load_checkpoint(const TrainOptions& options, int ranks) {
  const std::string path = checkpoint_path(options);
  if (options.out.empty() || !std::filesystem::exists(path)) return {};
  FileContents packed;
  packed.tensors = load_safetensors(path, &packed.metadata);
  try {
    check_same_run(options, ranks, packed.metadata);
    return unpack(packed, ranks);
  } catch (const CheckpointError& error) {
    fail<CheckpointError>(
        "cannot resume from {}: {}; choose another run folder with --out, or leave out --resume",
        path, error.what());
  }
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
  return unpack(packed, group.size());
}

}  // namespace tutti::examples
