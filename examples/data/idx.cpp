// load_idx(): reads the IDX files of the MNIST family. zlib reads files that are not compressed,
// too.
#include "dataset.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

namespace tutti::examples {
namespace {

class GzFile {
 public:
  explicit GzFile(std::string path)
      : path_(std::move(path)), file_(gzopen(path_.c_str(), "rb"), gzclose) {
    if (!file_) fail<DataError>("cannot open data file {}", path_);
    gzbuffer(file_.get(), 1 << 17);
  }
  void read(void* to, std::size_t bytes) {
    const int got = gzread(file_.get(), to, static_cast<unsigned>(bytes));
    int error = Z_OK;
    const char* const message = gzerror(file_.get(), &error);
    if (error != Z_OK && error != Z_BUF_ERROR)
      fail<DataError>("data file {} is corrupt: {}", path_, message);
    if (got != static_cast<int>(bytes)) fail<DataError>("data file {} is truncated", path_);
  }
  std::uint32_t read_number() {
    std::array<std::uint8_t, 4> b{};
    read(b.data(), b.size());
    return static_cast<std::uint32_t>(b[0]) << 24 | static_cast<std::uint32_t>(b[1]) << 16 |
           static_cast<std::uint32_t>(b[2]) << 8 | b[3];
  }
  std::vector<std::uint8_t> read_bytes(std::size_t bytes) {
    // The result grows as data arrives, so that a header with a wrong size costs no memory.
    std::vector<std::uint8_t> result;
    while (result.size() < bytes) {
      const std::size_t at = result.size(), part = std::min<std::size_t>(bytes - at, 1 << 24);
      result.resize(at + part);
      read(result.data() + at, part);
    }
    return result;
  }
  // Throws unless the file ends here. At the end zlib compares the checksum, too.
  void expect_end() {
    char byte = 0;
    const int got = gzread(file_.get(), &byte, 1);
    int error = Z_OK;
    gzerror(file_.get(), &error);
    if (got > 0)
      fail<DataError>("data file {} is corrupt: it is longer than its header says", path_);
    if (error == Z_BUF_ERROR) fail<DataError>("data file {} is truncated", path_);
    if (got < 0 || error != Z_OK)
      fail<DataError>("data file {} is corrupt: its checksum is wrong", path_);
  }
  [[noreturn]] void throw_wrong_magic(std::uint32_t magic, std::uint32_t expected) {
    fail<DataError>("data file {} is corrupt: it starts with {:#010x}, expected {:#010x}", path_,
                    magic, expected);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

GzFile open(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  if (!std::filesystem::exists(path) && !std::filesystem::exists(path + ".gz"))
    fail<DataError>("data file {}.gz is missing; give its folder with --data", path);
  return GzFile(std::filesystem::exists(path) ? path : path + ".gz");
}

}  // namespace

Dataset load_idx(const std::string& folder, const std::string& prefix) {
  // The magic numbers of files of unsigned bytes in 3 dimensions and in 1.
  constexpr std::uint32_t image_magic = 0x803, label_magic = 0x801;
  if (!std::filesystem::is_directory(folder))
    fail<DataError>(
        "data folder {} is missing; give another with --data (Debian's package "
        "dataset-fashion-mnist has Fashion-MNIST)",
        folder);
  GzFile images = open(folder, prefix + "-images-idx3-ubyte");
  if (const auto magic = images.read_number(); magic != image_magic)
    images.throw_wrong_magic(magic, image_magic);
  Dataset data{.count = images.read_number(),
               .channels = 1,
               .height = images.read_number(),
               .width = images.read_number(),
               .classes = 10};
  if (data.count < 1 || data.count > 10'000'000 || data.height != 28 || data.width != 28)
    fail<DataError>(
        "data file {} is corrupt: it claims {} images of {} x {} pixels, expected 28 x 28",
        images.path(), data.count, data.height, data.width);
  data.images = images.read_bytes(static_cast<std::size_t>(data.count * data.image_size()));
  images.expect_end();

  GzFile labels = open(folder, prefix + "-labels-idx1-ubyte");
  if (const auto magic = labels.read_number(); magic != label_magic)
    labels.throw_wrong_magic(magic, label_magic);
  if (const std::int64_t count = labels.read_number(); count != data.count)
    fail<DataError>("data file {} is corrupt: it has {} labels for {} images", labels.path(), count,
                    data.count);
  data.labels = labels.read_bytes(static_cast<std::size_t>(data.count));
  labels.expect_end();
  for (const std::uint8_t label : data.labels)
    if (label >= data.classes)
      fail<DataError>("data file {} is corrupt: label {}, expected 0 to {}", labels.path(), label,
                      data.classes - 1);
  return data;
}

}  // namespace tutti::examples
