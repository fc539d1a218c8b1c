// The file of a checkpoint: what it holds, how it is packed, checked and read, and which files of a
// run are kept. restore.cpp says whether a run may go on from it.
#include "checkpoint.h"

#include "evaluation.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/core/excerpt.h>
#include <tutti/core/parse_number.h>
#include <tutti/distributed/run_state.h>
#include <tutti/nn/models/model_card.h>

#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <sstream>

namespace tutti::examples {

namespace {

using distributed::RunState;
constexpr const char* format = "tutti train_resnet 4";

// What the names of a checkpoint's tensors begin with, and where their states are.
template <class AnyCheckpoint>
auto parts_of(AnyCheckpoint& c) {
  return std::array{std::pair{"model", &c.model}, std::pair{"optimizer", &c.optimizer.tensors},
                    std::pair{"scaler", &c.scaler}, std::pair{"plateau", &c.plateau},
                    std::pair{"ema", &c.ema}};
}

RunState pack(const Checkpoint& c) {
  RunState packed;
  for (const auto& [name, state] : parts_of(c)) packed.add(name, *state);
  packed.add("optimizer", {}, c.optimizer.metadata);
  packed.tensors.emplace_back("random", c.random);
  packed.tensors.emplace_back("sums", c.sums);
  packed.tensors.emplace_back("rows", to_table(c.rows));
  packed.metadata["ranks"] = std::to_string(c.ranks());
  packed.metadata["step"] = std::to_string(c.step);
  packed.metadata["steps"] = std::to_string(c.steps);
  packed.metadata["steps_per_epoch"] = std::to_string(c.steps_per_epoch);
  packed.metadata["samples"] = std::to_string(c.samples);
  packed.metadata["resumed"] = fmt::format("{}", fmt::join(c.resumed, " "));
  packed.metadata["options"] = c.options;
  packed.metadata.insert(c.data.begin(), c.data.end());
  return packed;
}

// ---- Reading. Everything is checked before a run sees any of it.

// Returns the numbers of a text, which are steps that a run has made and rise.
std::vector<std::int64_t> steps_in(const std::string& text, std::int64_t most) {
  std::vector<std::int64_t> steps;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto step = parse_number<std::int64_t>(word, steps.empty() ? 0 : steps.back(), most);
    if (!step) fail<CheckpointError>("its metadata have 'resumed' as '{}'", excerpt(text));
    steps.push_back(*step);
  }
  return steps;
}

Checkpoint unpack(const RunState& packed) {
  Checkpoint c;
  for (const auto& [name, state] : parts_of(c)) *state = packed.part(name);
  c.optimizer.metadata = packed.metadata_of("optimizer");
  if (c.model.empty()) fail<CheckpointError>("tensors 'model.*' are missing");
  c.step = packed.number("step");
  c.steps = packed.number("steps");
  if (c.step > c.steps) fail<CheckpointError>("it claims to be at step {} of {}", c.step, c.steps);
  c.steps_per_epoch = packed.number("steps_per_epoch");
  c.samples = packed.number("samples");
  c.resumed = steps_in(packed.text("resumed"), c.step);
  c.options = packed.text("options");
  const bool describes_data = std::ranges::any_of(
      data_metadata, [&](const char* key) { return packed.metadata.contains(key); });
  for (const char* key : data_metadata)
    if (describes_data) c.data[key] = packed.text(key);
  const std::int64_t ranks = packed.number("ranks");
  if (ranks == 0) fail<CheckpointError>("its metadata have 'ranks' as 0, expected at least 1");
  c.random = packed.tensor("random", int64, {ranks, 2});
  c.sums = packed.tensor("sums", float64, {ranks, LossSums::figures});
  c.rows = rows_from_table(packed.tensor("rows", float64, {-1, metrics_columns}), c.step);
  return c;
}

}  // namespace

void check_entries(const StateDict& from, const StateDict& own, const std::string& prefix,
                   const std::function<bool(const Tensor&, const Tensor&)>& fits) {
  const auto describe = [](const Tensor& tensor) {
    return fmt::format("{} {}", to_string(tensor.dtype()), to_string(tensor.shape()));
  };
  std::map<std::string, Tensor> unknown(from.begin(), from.end());
  for (const auto& [name, mine] : own) {
    const auto found = unknown.find(name);
    if (found == unknown.end()) fail<CheckpointError>("tensor '{}{}' is missing", prefix, name);
    if (found->second.shape() != mine.shape() || !fits(found->second, mine))
      fail<CheckpointError>("tensor '{}{}' is {}, expected {}", prefix, name,
                            describe(found->second), describe(mine));
    unknown.erase(found);
  }
  if (!unknown.empty())
    fail<CheckpointError>("tensor '{}' is unknown to the network",
                          excerpt(prefix + unknown.begin()->first));
}

std::string checkpoint_path(const TrainOptions& options) {
  return options.out + "/checkpoint.safetensors";
}

void save_checkpoint(const TrainOptions& options, const Checkpoint& checkpoint,
                     const std::string& path) {
  RunState packed = pack(checkpoint);
  packed.metadata["format"] = format;
  packed.metadata["options"] = options_of_checkpoint(options);
  save_safetensors(path.empty() ? checkpoint_path(options) : path, packed.tensors, packed.metadata);
}

std::optional<Checkpoint> load_checkpoint(const TrainOptions& options) {
  const std::string path = checkpoint_path(options);
  std::error_code ignored;  // a file that cannot be examined is refused by load_safetensors
  if (options.out.empty() ||
      std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found)
    return {};
  RunState packed;
  packed.tensors = load_safetensors(path, &packed.metadata);
  try {
    if (packed.metadata["format"] != format)
      fail<CheckpointError>("expected the format '{}', got '{}', of another version or program",
                            format, excerpt(packed.metadata["format"]));
    check_same_options(options, packed.text("options"));
    return unpack(packed);
  } catch (const CheckpointError& error) {
    refuse_checkpoint(options, error.what());
  }
}

std::string tensor_not_finite(const Checkpoint& c) {
  for (const auto& [part, state] : parts_of(c))
    if (state != &c.plateau)  // whose best loss is infinite before the first test
      if (const std::string name = distributed::not_finite(*state); !name.empty())
        return part + ("." + name);
  return {};
}

void refuse_checkpoint(const TrainOptions& options, const std::string& reason) {
  fail<CheckpointError>(
      "cannot resume from {}: {}; choose another run folder with --out, or leave out --resume",
      checkpoint_path(options), reason);
}

std::optional<Checkpoint> broadcast_checkpoint(const std::optional<Checkpoint>& mine,
                                               const ProcessGroup& group) {
  const RunState packed = distributed::broadcast(mine ? pack(*mine) : RunState(), group);
  return packed.tensors.empty() ? std::nullopt : std::optional(unpack(packed));
}

std::string other_data(const TrainOptions& options, const Checkpoint& from, const Metadata& now) {
  if (now.empty()) return {};
  if (from.data.empty()) return "it does not say of which classes and images it is";
  const auto differs = [&](const char* key) { return from.data.at(key) != now.at(key); };
  const auto key = std::ranges::find_if(data_metadata, differs);
  if (key == data_metadata.end()) return {};
  std::string before = fmt::format("{} = {}", *key, excerpt(from.data.at(*key))),
              own = excerpt(now.at(*key));
  const std::vector<std::string> names = nn::ModelCard::from_metadata(from.data).class_names,
                                 own_names = nn::ModelCard::from_metadata(now).class_names;
  if (*key == std::string_view("class_names") && names.size() == own_names.size()) {
    const auto [a, b] = std::ranges::mismatch(names, own_names);
    before = fmt::format("class {} = '{}'", a - names.begin(), excerpt(*a));
    own = fmt::format("'{}'", excerpt(*b));
  }
  return fmt::format(
      "it is of a run with {}, this one has {}; --weights {} in another run folder begins with its "
      "weights",
      before, own, checkpoint_path(options));
}

// ---- kept files

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kept_prefix = "checkpoint-epoch-", kept_suffix = ".safetensors";

// Returns the epoch in the name of a kept checkpoint; nothing for another name.
std::optional<std::int64_t> kept_epoch(std::string_view name) {
  if (!name.starts_with(kept_prefix) || !name.ends_with(kept_suffix)) return {};
  name.remove_prefix(kept_prefix.size());
  name.remove_suffix(kept_suffix.size());
  return parse_number<std::int64_t>(name);
}

std::vector<fs::path> checkpoints_up_to(std::int64_t epoch, const std::string& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error))
    if (const auto kept = kept_epoch(entries->path().filename().native()); kept && *kept <= epoch)
      found.push_back(entries->path());
  if (error) fail<FileError>("cannot read the run folder '{}': {}", folder, error.message());
  return found;
}

}  // namespace

std::string best_path(const TrainOptions& options) { return options.out + "/best.safetensors"; }

void keep_best(const TrainOptions& options, const std::vector<Metrics>& rows,
               const StateDict& state, const Metadata& metadata) {
  if (best_row(rows) == &rows.back()) save_safetensors(best_path(options), state, metadata);
}

void keep_checkpoint(const TrainOptions& options, const Checkpoint& checkpoint,
                     std::int64_t epoch) {
  save_checkpoint(options, checkpoint,
                  fmt::format("{}/{}{:04}{}", options.out, kept_prefix, epoch, kept_suffix));
  for (const fs::path& path : checkpoints_up_to(epoch - options.keep_last, options.out)) {
    std::error_code error;
    fs::remove(path, error);
    if (error) fail<FileError>("cannot remove '{}': {}", path.string(), error.message());
  }
}

}  // namespace tutti::examples
