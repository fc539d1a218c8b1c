// Fuzzes load_idx(). The first byte of an input says whether the image file (bit 0) and the label
// file (bit 1) are compressed, the next two bytes say how long the image file is, and the rest is
// the content of both files. A content that is compressed already may be passed as it is.
#include "input.h"

#include <tutti/data/idx.h>

#include <zlib.h>

#include <cstring>

namespace tutti {
namespace {

using namespace data;

void write(const std::string& path, const std::string& bytes, bool compress) {
  const gzFile file = gzopen(path.c_str(), compress ? "wb1" : "wbT");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

void read(const std::string& input) {
  static const test::InputFolder folder;
  const auto byte = [&](std::size_t i) {
    return i < input.size() ? static_cast<std::uint8_t>(input[i]) : 0u;
  };
  const std::string content = input.size() > 3 ? input.substr(3) : "";
  const std::size_t images = std::min<std::size_t>(byte(1) + 256 * byte(2), content.size());
  write(folder.path() + "/train-images-idx3-ubyte", content.substr(0, images), byte(0) & 1);
  write(folder.path() + "/train-labels-idx1-ubyte", content.substr(images), byte(0) & 2);
  test::is_read<DataError>(folder.path() + "/train-", [&] {
    const auto dataset = load_idx(folder.path(), "train");
    test::require(dataset->size() > 0, "there are no images");
    // A content that is compressed itself is read as what it contains.
    const bool is_compressed = content.starts_with("\x1f\x8b");
    for (std::int64_t i = 0; i < dataset->size(); ++i) {
      const Sample sample = dataset->get(i);
      test::require(sample.label >= 0 && sample.label < 10, "a label is too large");
      constexpr std::int64_t header = 16;
      const std::int64_t bytes = sample.image.numel();
      test::require(
          is_compressed || std::memcmp(sample.image.raw(), content.data() + header + i * bytes,
                                       static_cast<std::size_t>(bytes)) == 0,
          "an image is not what its file holds");
    }
  });
}

}  // namespace
}  // namespace tutti

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tutti::read({reinterpret_cast<const char*>(data), size});
  return 0;
}
