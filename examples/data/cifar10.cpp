// load_cifar10(): reads CIFAR-10's binary batches. A record is one label byte and 3 x 32 x 32
// pixels, one plane after the other; a Dataset has the channels of a pixel side by side.
#include "dataset.h"

#include <filesystem>
#include <fstream>

namespace tutti::examples {

Dataset load_cifar10(const std::string& folder, const std::vector<std::string>& files) {
  constexpr std::int64_t plane = 32 * 32, record = 1 + 3 * plane;
  if (!std::filesystem::is_directory(folder))
    fail<DataError>(
        "data folder {} is missing; give the unpacked binary version of CIFAR-10 with --data",
        folder);
  Dataset data{.channels = 3, .height = 32, .width = 32, .classes = 10};
  data.mean = {0.4914f, 0.4822f, 0.4465f};
  data.deviation = {0.2470f, 0.2435f, 0.2616f};
  data.crop_padding = 4;
  for (const std::string& name : files) {
    const std::string path = folder + "/" + name;
    std::ifstream file(path, std::ios::binary);
    if (!file) fail<DataError>("data file {} is missing; give its folder with --data", path);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file),
                                  std::istreambuf_iterator<char>()};
    const auto size = static_cast<std::int64_t>(bytes.size());
    if (size == 0 || size % record != 0)
      fail<DataError>("data file {} is truncated: {} bytes are no multiple of {}", path, size,
                      record);
    for (std::int64_t at = 0; at < size; at += record) {
      const auto* r = reinterpret_cast<const std::uint8_t*>(bytes.data()) + at;
      if (r[0] >= data.classes)
        fail<DataError>("data file {} is corrupt: label {}, expected 0 to {}", path, r[0],
                        data.classes - 1);
      data.labels.push_back(r[0]);
      for (std::int64_t p = 0; p < plane; ++p)
        for (std::int64_t c = 0; c < 3; ++c) data.images.push_back(r[1 + c * plane + p]);
    }
  }
  data.count = static_cast<std::int64_t>(data.labels.size());
  return data;
}

}  // namespace tutti::examples
