#include "kept_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>

namespace tutti::examples {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kept_prefix = "checkpoint-epoch-", kept_suffix = ".safetensors";

// Returns the metadata of best.safetensors; nothing where there is no such file.
Metadata read_best(const TrainOptions& options) {
  Metadata metadata;
  try {
    load_safetensors(best_path(options), &metadata, {.names = std::vector<std::string>()});
  } catch (const CheckpointError&) {
    return {};
  }
  return metadata;
}

std::string value_of(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

// Returns the epoch in the name of a kept checkpoint; nothing for another name.
std::optional<std::int64_t> kept_epoch(std::string_view name) {
  if (!name.starts_with(kept_prefix) || !name.ends_with(kept_suffix)) return {};
  const char *const begin = name.data() + kept_prefix.size(), *const end = name.data() +
                                                                           name.size() -
                                                                           kept_suffix.size();
  std::int64_t epoch = 0;
  const auto [stop, error] = std::from_chars(begin, end, epoch);
  return error == std::errc() && stop == end ? std::optional(epoch) : std::nullopt;
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
  if (!std::isfinite(rows.back().test_loss.value_or(0))) return;
  const Metadata kept = read_best(options);
  const double kept_accuracy =
      kept.empty() ? -1 : std::strtod(value_of(kept, "test_accuracy").c_str(), nullptr);
  if (rows.back().test_accuracy.value_or(0) > kept_accuracy)
    save_safetensors(best_path(options), state, metadata);
}

std::string describe_best(const TrainOptions& options) {
  const Metadata best = read_best(options);
  if (best.empty()) return "best     none: no epoch was tested since --keep-best was given";
  return fmt::format("best     {} (epoch {}, test accuracy {:.4f})", best_path(options),
                     value_of(best, "epoch"),
                     std::strtod(value_of(best, "test_accuracy").c_str(), nullptr));
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
