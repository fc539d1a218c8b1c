// What identifies the data of a run: numbers, classes and fingerprints of the images, by which
// ranks, and a run and its resume, find out whether their data are the same.
#include "evaluation.h"
#include "training_data.h"

#include <tutti/core/create.h>
#include <tutti/core/hash.h>

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

// Returns a hash of the names of classes and of the fingerprints.
std::uint64_t hash_of(const TrainingData& data) {
  Hash64 hash;
  for (const std::string& name : data.class_names) hash.add(name).add(std::uint64_t{name.size()});
  for (const auto& [key, text] : data.images) hash.add(text);
  return hash.value();
}

std::string describe(const std::int64_t* numbers) {
  return fmt::format("{} training and {} test images of {} classes", numbers[0], numbers[1],
                     numbers[2]);
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
  constexpr std::int64_t count = 4;
  const std::vector numbers{data.train->size(), data.test->size(), data.classes,
                            static_cast<std::int64_t>(hash_of(data))};
  const Tensor all = gather_from_ranks(tensor(numbers), group, "data");
  const std::int64_t* const first = all.data<std::int64_t>();
  for (int rank = 1; rank < group.size(); ++rank) {
    const std::int64_t* const other = first + rank * count;
    if (std::equal(first, first + count, other)) continue;
    const std::string found = describe(first), found_there = describe(other);
    if (found == found_there)
      fail<DataError>(
          "ranks 0 and {} both have {}, but other images, or other names of classes or files; give "
          "all hosts "
          "the same data",
          rank, found);
    fail<DataError>("rank 0 has {}, rank {} has {}; give all hosts the same data", found, rank,
                    found_there);
  }
}

}  // namespace tutti::examples
