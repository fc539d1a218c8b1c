// Fuzzes load_idx(). The first byte of an input says whether the image file (bit 0) and the label
// file (bit 1) are compressed, the next two bytes say how long the image file is, and the rest is
// the content of both files. A content that is compressed already may be passed as it is.
#include "data/dataset.h"
#include "input.h"

#include <zlib.h>

namespace tutti {
namespace {

using namespace examples;

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
    const Dataset data = load_idx(folder.path(), "train");
    const auto count = static_cast<std::size_t>(data.count);
    test::require(count > 0 && data.images.size() == count * 28 * 28 && data.labels.size() == count,
                  "the data has other sizes than its count says");
    for (const std::uint8_t label : data.labels)
      test::require(label < data.classes, "a label is too large");
  });
}

}  // namespace
}  // namespace tutti

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tutti::read({reinterpret_cast<const char*>(data), size});
  return 0;
}
