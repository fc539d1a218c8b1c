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
      : path_(std::move(path)),
        stored_bytes_(data_file_size(path_)),
        file_(gzopen(path_.c_str(), "rb"), gzclose) {
    if (!file_) fail<DataError>("data file {} cannot be opened", path_);
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
  // The memory is reserved once and used as data arrives, so that it never holds a second copy. A
  // header that claims more than the file can hold is refused before that.
  std::vector<std::uint8_t> read_bytes(std::int64_t bytes) {
    if (bytes / max_compression > stored_bytes_)
      fail<DataError>(
          "data file {} is truncated: its header announces {} bytes, which cannot come "
          "from its {}",
          path_, bytes, stored_bytes_);
    const auto size = static_cast<std::size_t>(bytes);
    std::vector<std::uint8_t> result;
    result.reserve(size);
    while (result.size() < size) {
      const std::size_t at = result.size(), part = std::min<std::size_t>(size - at, 1 << 24);
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
  void expect_magic(std::uint32_t expected) {
    if (const std::uint32_t magic = read_number(); magic != expected)
      fail<DataError>("data file {} is corrupt: it starts with {:#010x}, expected {:#010x}", path_,
                      magic, expected);
  }
  const std::string& path() const { return path_; }

 private:
  // Deflate stores at most 258 bytes in 2 bits.
  static constexpr std::int64_t max_compression = 1032;

  std::string path_;
  std::int64_t stored_bytes_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

GzFile open(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  std::error_code ignored;
  return GzFile(std::filesystem::exists(path, ignored) ? path : path + ".gz");
}

void read_images(Dataset& data, GzFile file) {
  constexpr std::int64_t most = 1'000'000;  // the largest sets of this family have 814,255 images
  file.expect_magic(0x803);                 // unsigned bytes in three dimensions
  data.count = file.read_number();
  data.height = file.read_number();
  data.width = file.read_number();
  if (data.height != 28 || data.width != 28)
    fail<DataError>(
        "data file {} is corrupt: it claims {} images of {} x {} pixels, expected 28 x 28",
        file.path(), data.count, data.height, data.width);
  if (data.count < 1 || data.count > most)
    fail<DataError>("data file {} is corrupt: it claims {} images, expected 1 to {}", file.path(),
                    data.count, most);
  data.images = file.read_bytes(data.count * data.image_size());
  file.expect_end();
}

void read_labels(Dataset& data, GzFile file) {
  file.expect_magic(0x801);  // unsigned bytes in one dimension
  if (const std::int64_t count = file.read_number(); count != data.count)
    fail<DataError>("data file {} is corrupt: it has {} labels for {} images", file.path(), count,
                    data.count);
  data.labels = file.read_bytes(data.count);
  file.expect_end();
  for (const std::uint8_t label : data.labels)
    if (label >= data.classes)
      fail<DataError>("data file {} is corrupt: label {}, expected 0 to {}", file.path(), label,
                      data.classes - 1);
}

}  // namespace

Dataset load_idx(const std::string& folder, const std::string& prefix) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    fail<DataError>(
        "data folder {} is missing; give another with --data (Debian's package "
        "dataset-fashion-mnist has Fashion-MNIST)",
        folder);
  Dataset data{.channels = 1, .classes = 10};
  read_images(data, open(folder, prefix + "-images-idx3-ubyte"));
  read_labels(data, open(folder, prefix + "-labels-idx1-ubyte"));
  return data;
}

}  // namespace tutti::examples
