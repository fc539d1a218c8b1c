#include "same_data.h"

#include <tutti/core/create.h>
#include <tutti/core/hash.h>

#include <algorithm>
#include <array>

namespace tutti::examples {
namespace {

// Returns a hash of the names of classes and files. Folders may lie elsewhere on another host.
std::uint64_t hash_names(const TrainingData& data) {
  Hash64 hash;
  for (const std::string& name : data.class_names) hash.add(name).add(std::uint64_t{name.size()});
  for (const auto& folder : data.folders)
    for (std::int64_t i = 0; i < folder->size(); ++i) {
      const std::string path = folder->describe(i);
      const std::size_t name = path.rfind('/', path.rfind('/') - 1);  // CLASS/FILE
      hash.add(std::string_view(path).substr(name));
    }
  return hash.value();
}

std::string describe(const std::int64_t* numbers) {
  return fmt::format("{} training and {} test images of {} classes", numbers[0], numbers[1],
                     numbers[2]);
}

}  // namespace

void expect_same_data(const TrainingData& data, const ProcessGroup& group) {
  constexpr std::int64_t count = 4;
  const Tensor mine = empty({count}, {.dtype = int64});
  const std::array numbers{data.train->size(), data.test->size(), data.classes,
                           static_cast<std::int64_t>(hash_names(data))};
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
          "ranks 0 and {} both have {}, but other names of classes or files; give all hosts the "
          "same data",
          rank, found);
    fail<DataError>("rank 0 has {}, rank {} has {}; give all hosts the same data", found, rank,
                    found_there);
  }
}

}  // namespace tutti::examples
