#include "same_data.h"

#include "model_card.h"

#include <tutti/core/create.h>
#include <tutti/core/excerpt.h>
#include <tutti/core/hash.h>

#include <algorithm>
#include <array>

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
  const bool are_files = !data.folders.empty();
  return {{"train_images", std::to_string(data.train->size())},
          {"train_fingerprint", fingerprint(*data.train, are_files)},
          {"test_images", std::to_string(data.test->size())},
          {"test_fingerprint", fingerprint(*data.test, are_files)}};
}

Metadata describe_data(const TrainOptions& options, const TrainingData& data) {
  if (data.images.empty()) return {};
  Metadata all = model_card(options, data).to_metadata();
  all.insert(data.images.begin(), data.images.end());
  return all;
}

std::string other_data(const TrainOptions& options, const Checkpoint& from, const Metadata& now) {
  if (from.data.empty() || now.empty()) return {};
  const auto differs = [&](const char* key) { return from.data.at(key) != now.at(key); };
  const auto key = std::ranges::find_if(data_metadata, differs);
  if (key == data_metadata.end()) return {};
  std::string before = fmt::format("{} = {}", *key, excerpt(from.data.at(*key))),
              own = now.at(*key);
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

void expect_same_data(const TrainingData& data, const ProcessGroup& group) {
  constexpr std::int64_t count = 4;
  const Tensor mine = empty({count}, {.dtype = int64});
  const std::array numbers{data.train->size(), data.test->size(), data.classes,
                           static_cast<std::int64_t>(hash_of(data))};
  std::copy(numbers.begin(), numbers.end(), mine.data<std::int64_t>());
  const Tensor all = empty({group.size(), count}, {.dtype = int64});
  group.all_gather(mine, all, {.name = "data"}).wait();
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
