// load_cifar10(): reads CIFAR-10's binary batches. A record is one label byte and 3 x 32 x 32
// pixels, one plane after the other; a Dataset has the channels of a pixel side by side.
#include "dataset.h"

#include <array>
#include <filesystem>
#include <fstream>

namespace tutti::examples {
namespace {

constexpr std::int64_t plane = 32 * 32, record = 1 + 3 * plane;

// Adds the records of one file. They are read one by one into memory that is reserved before, so
// that the file and its pixels are not in memory at once.
void add_file(Dataset& data, const std::string& path) {
  constexpr std::int64_t most = 100'000;  // ten times what a file of CIFAR-10 has
  const std::int64_t bytes = data_file_size(path), count = bytes / record;
  if (bytes == 0 || bytes % record != 0)
    fail<DataError>("data file {} is truncated: {} bytes are no multiple of {}", path, bytes,
                    record);
  if (count > most)
    fail<DataError>("data file {} is too long: it has {} images, expected at most {}", path, count,
                    most);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail<DataError>("data file {} cannot be opened", path);
  data.labels.reserve(data.labels.size() + static_cast<std::size_t>(count));
  data.images.reserve(data.images.size() + static_cast<std::size_t>(count * 3 * plane));
  std::array<char, record> buffer{};
  for (std::int64_t i = 0; i < count; ++i) {
    if (!file.read(buffer.data(), record))
      fail<DataError>("data file {} is truncated: image {} of {} cannot be read", path, i + 1,
                      count);
    const auto* const r = reinterpret_cast<const std::uint8_t*>(buffer.data());
    if (r[0] >= data.classes)
      fail<DataError>("data file {} is corrupt: label {}, expected 0 to {}", path, r[0],
                      data.classes - 1);
    data.labels.push_back(r[0]);
    const std::size_t at = data.images.size();
    data.images.resize(at + 3 * plane);
    std::uint8_t* pixel = data.images.data() + at;
    for (std::int64_t p = 0; p < plane; ++p)
      for (std::int64_t c = 0; c < 3; ++c) *pixel++ = r[1 + c * plane + p];
  }
}

}  // namespace

Dataset load_cifar10(const std::string& folder, const std::vector<std::string>& files) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    fail<DataError>(
        "data folder {} is missing; give the unpacked binary version of CIFAR-10 with --data",
        folder);
  Dataset data{.channels = 3, .height = 32, .width = 32, .classes = 10};
  data.mean = {0.4914f, 0.4822f, 0.4465f};
  data.deviation = {0.2470f, 0.2435f, 0.2616f};
  data.crop_padding = 4;
  for (const std::string& name : files) add_file(data, folder + "/" + name);
  data.count = static_cast<std::int64_t>(data.labels.size());
  return data;
}

}  // namespace tutti::examples
