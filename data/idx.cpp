// zlib reads the files, also those that are not compressed.
#include "idx.h"

#include "../core/create.h"
#include "data_file.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

namespace tutti::data {
namespace {

class GzFile {
 public:
  explicit GzFile(std::string path)
      : path_(std::move(path)),
        stored_bytes_(data_file_size(path_)),
        file_(gzopen(path_.c_str(), "rb"), gzclose) {
    if (!file_) fail_unreadable("data file " + path_ + " cannot be opened", errno);
    gzbuffer(file_.get(), 1 << 17);
  }

  void read(void* to, std::size_t bytes) {
    const int got = gzread(file_.get(), to, static_cast<unsigned>(bytes));
    int error = Z_OK;
    const char* const message = gzerror(file_.get(), &error);
    if (error != Z_OK && error != Z_BUF_ERROR)
      fail<DataError>("data file {} is corrupt: {}", path_, without_path(message));
    if (got != static_cast<int>(bytes)) fail<DataError>("data file {} is truncated", path_);
  }

  std::uint32_t read_number() {
    std::array<std::uint8_t, 4> b{};
    read(b.data(), b.size());
    return static_cast<std::uint32_t>(b[0]) << 24 | static_cast<std::uint32_t>(b[1]) << 16 |
           static_cast<std::uint32_t>(b[2]) << 8 | b[3];
  }

  // Reads a whole tensor. A header that claims more than the file can hold is refused before the
  // memory is allocated. Pages of that memory come into being as data arrives.
  Tensor read_bytes(const Shape& shape) {
    const std::int64_t bytes = numel(shape);
    if (bytes > max_bytes)
      fail<DataError>("data file {}: its header announces {} bytes, expected at most {}", path_,
                      bytes, max_bytes);
    if (bytes / (gzdirect(file_.get()) ? 1 : max_compression) > stored_bytes_)
      fail<DataError>(
          "data file {} is truncated: its header announces {} bytes, which cannot come "
          "from its {}",
          path_, bytes, stored_bytes_);
    const Tensor result = empty(shape, {.dtype = uint8});
    constexpr std::int64_t part = 1 << 24;
    for (std::int64_t at = 0; at < bytes; at += part)
      read(result.data<std::uint8_t>() + at, static_cast<std::size_t>(std::min(part, bytes - at)));
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

  // Throws unless the file holds unsigned bytes in so many dimensions.
  void expect_bytes(std::uint32_t dimensions) {
    constexpr std::array<const char*, 15> types{"", "",      "",      "",        "",
                                                "", "",      "",      "uint8",   "int8",
                                                "", "int16", "int32", "float32", "float64"};
    const std::uint32_t magic = read_number(), type = magic >> 8, expected = 0x800 + dimensions;
    if (magic == expected) return;
    if (type >= 8 && type < types.size() && *types[type])
      fail<DataError>("data file {} holds {} in {} dimensions, expected uint8 in {}", path_,
                      types[type], magic & 0xFF, dimensions);
    fail<DataError>("data file {} is corrupt: it starts with {:#010x}, expected {:#010x}", path_,
                    magic, expected);
  }

  const std::string& path() const { return path_; }

 private:
  // zlib's messages begin with the path.
  std::string_view without_path(std::string_view message) const {
    return message.starts_with(path_ + ": ") ? message.substr(path_.size() + 2) : message;
  }

  // The largest set of this family, EMNIST by class, has 697,932 images of 784 bytes.
  static constexpr std::int64_t max_bytes = std::int64_t{4} << 30;
  // Deflate stores at most 258 bytes in 2 bits.
  static constexpr std::int64_t max_compression = 1032;

  std::string path_;
  std::int64_t stored_bytes_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

// Opens one of the names under which these files are published. Where there is none, the error
// names the file in a folder below, such as torchvision's FashionMNIST/raw.
GzFile open(const std::string& folder, const std::string& set, const std::string& kind) {
  std::error_code ignored;
  std::vector<std::string> names;
  for (const std::string separator : {"-", "."})
    for (const std::string ending : {"", ".gz"}) {
      names.push_back(set + separator + kind + ending);
      const std::string path = folder + "/" + names.back();
      if (std::filesystem::exists(path, ignored)) return GzFile(path);
    }
  for (std::filesystem::recursive_directory_iterator entry(folder, ignored), end; entry != end;
       entry.increment(ignored)) {
    if (entry.depth() >= 2) entry.disable_recursion_pending();
    const std::filesystem::path& path = entry->path();
    if (std::ranges::count(names, path.filename().string()) > 0)
      fail<DataError>("data file {}/{} is missing; {} is there: give the folder {}", folder,
                      names[0], path.string(), path.parent_path().string());
  }
  fail<DataError>("data file {}/{} is missing, also with .gz, and with .{} at its end", folder,
                  names[0], kind);
}

Tensor read_images(GzFile file) {
  constexpr std::int64_t most = 1'000'000;  // the largest sets of this family have 814,255 images
  constexpr std::int64_t largest_side = 1024;
  file.expect_bytes(3);
  const std::int64_t count = file.read_number(), height = file.read_number(),
                     width = file.read_number();
  if (std::min(height, width) < 1 || std::max(height, width) > largest_side)
    fail<DataError>(
        "data file {} is corrupt: it claims {} images of {} x {} pixels, expected sides of 1 to {}",
        file.path(), count, height, width, largest_side);
  if (count < 1 || count > most)
    fail<DataError>("data file {} is corrupt: it claims {} images, expected 1 to {}", file.path(),
                    count, most);
  Tensor images = file.read_bytes({count, height, width, 1});
  file.expect_end();
  return images;
}

Tensor read_labels(GzFile file, std::int64_t images, std::int64_t classes) {
  file.expect_bytes(1);
  if (const std::int64_t count = file.read_number(); count != images)
    fail<DataError>("data file {} is corrupt: it has {} labels for {} images", file.path(), count,
                    images);
  const Tensor labels = file.read_bytes({images});
  file.expect_end();
  const std::uint8_t* const bytes = labels.data<std::uint8_t>();
  const std::uint8_t largest = *std::max_element(bytes, bytes + images);
  if (largest >= classes)
    fail<DataError>("data file {} is corrupt: label {}, expected 0 to {}", file.path(), largest,
                    classes - 1);
  return labels.to(int64);
}

}  // namespace

std::shared_ptr<const TensorDataset> load_idx(const std::string& folder, const std::string& prefix,
                                              const IdxOptions& options) {
  const auto names = static_cast<std::int64_t>(options.class_names.size());
  if (options.classes < 1 || options.classes > 256 || (names != 0 && names != options.classes))
    fail<ValueError>("load_idx: expected 1 to 256 classes and as many names or none, got {} and {}",
                     options.classes, names);
  check_data_folder(folder, "the files of MNIST and its family are looked for there");
  const Tensor images = read_images(open(folder, prefix + "-images", "idx3-ubyte"));
  const Tensor labels =
      read_labels(open(folder, prefix + "-labels", "idx1-ubyte"), images.size(0), options.classes);
  return std::make_shared<TensorDataset>(images, labels, options.class_names);
}

}  // namespace tutti::data
