// What identifies the data of a run: numbers, classes and fingerprints of the images, by which
// ranks, and a run and its resume, find out whether their data are the same.
#include "training_data.h"

#include <tutti/core/excerpt.h>
#include <tutti/core/hash.h>
#include <tutti/distributed/agreement.h>

#include <algorithm>

namespace tutti::examples {

namespace {

// Adds the paths of a folder's files, without the beginning that all have in common: the folder may
// lie elsewhere on another host. The files are sorted, so that the first and the last tell it.
void add_paths(Hash64& hash, const data::Dataset& folder) {
  const std::string first = folder.describe(0), last = folder.describe(folder.size() - 1);
  const auto common = std::ranges::mismatch(first, last).in1 - first.begin();
  for (std::int64_t i = 0; i < folder.size(); ++i)
    hash.add(std::string_view(folder.describe(i)).substr(static_cast<std::size_t>(common)))
        .add(std::uint64_t{0});
}

void add_some_images(Hash64& hash, const data::Dataset& images) {
  constexpr std::int64_t most = 256;
  const std::int64_t size = images.size(), n = std::min(size, most);
  for (std::int64_t i = 0; i < n; ++i) {
    const data::Sample sample = images.get(i * size / n);
    const Tensor pixels = sample.image.contiguous();
    hash.add(static_cast<std::uint64_t>(sample.label))
        .add(pixels.raw(), static_cast<std::size_t>(pixels.numel()));
  }
}

std::string fingerprint(const data::Dataset& images, bool are_files) {
  Hash64 hash;
  if (are_files) add_paths(hash, images);
  else add_some_images(hash, images);
  return fmt::format("{:016x}", hash.value());
}

}  // namespace

Metadata describe_images(const TrainingData& data) {
  return {{"train_images", std::to_string(data.train->size())},
          {"train_fingerprint", fingerprint(*data.train, data.are_files)},
          {"test_images", std::to_string(data.test->size())},
          {"test_fingerprint", fingerprint(*data.test, data.are_files)}};
}

Metadata describe_data(const TrainOptions& options, const TrainingData& data) {
  if (data.images.empty()) return {};
  Metadata all = model_card(options, data).to_metadata();
  all.insert(data.images.begin(), data.images.end());
  return all;
}

void expect_same_data(const TrainingData& data, const ProcessGroup& group) {
  std::string lines;
  for (const auto& [key, text] : data.images) lines += fmt::format("{} = {}\n", key, text);
  for (std::size_t c = 0; c < data.class_names.size(); ++c)
    lines += fmt::format("class {} = {}\n", c, excerpt(data.class_names[c]));
  distributed::check_same_on_ranks(group, "data", lines);
}

}  // namespace tutti::examples
