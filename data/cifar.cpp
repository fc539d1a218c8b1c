// A record is one label byte (in CIFAR-100 one of 20 superclasses stands before it) and 3 x 32 x 32
// pixels, one plane after the other. A dataset has the channels of a pixel side by side.
#include "cifar.h"

#include "../core/create.h"
#include "../core/excerpt.h"
#include "data_file.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

namespace tutti::data {
namespace {

constexpr std::int64_t side = 32, plane = side * side, pixels = 3 * plane;

// The form of a record.
struct Record {
  std::int64_t label_bytes = 1;  // the last one is the label
  std::int64_t classes = 10;

  std::int64_t bytes() const { return label_bytes + pixels; }
};

// Returns the number of images of a file, by its size.
std::int64_t count_images(const std::string& path, const Record& record) {
  constexpr std::int64_t most = 100'000;  // twice what a file of these datasets has
  std::error_code ignored;
  if (const std::string python = path.substr(0, path.size() - std::strlen(".bin"));
      !std::filesystem::exists(path, ignored) && std::filesystem::exists(python, ignored))
    fail<DataError>(
        "data file {} is missing; {} is of the version for Python: expected the binary version",
        path, python);
  const std::int64_t bytes = data_file_size(path), count = bytes / record.bytes();
  if (bytes == 0 || bytes % record.bytes() != 0)
    fail<DataError>("data file {} is truncated: {} bytes are no multiple of {}", path, bytes,
                    record.bytes());
  if (count > most)
    fail<DataError>("data file {} is too long: it has {} images, expected at most {}", path, count,
                    most);
  return count;
}

// Reads the records of one file to `image` and `label`, one by one, so that the file and its pixels
// are not in memory at once.
void read_file(const std::string& path, const Record& record, std::int64_t count,
               std::uint8_t* image, std::int64_t* label) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_unreadable("data file " + path + " cannot be opened", errno);
  std::vector<char> buffer(static_cast<std::size_t>(record.bytes()));
  for (std::int64_t i = 0; i < count; ++i) {
    if (!file.read(buffer.data(), record.bytes()))
      fail<DataError>("data file {} is truncated: image {} of {} cannot be read", path, i + 1,
                      count);
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(buffer.data());
    *label = bytes[record.label_bytes - 1];
    if (*label >= record.classes)
      fail<DataError>("data file {} is corrupt: label {}, expected 0 to {}", path, *label,
                      record.classes - 1);
    ++label;
    for (std::int64_t p = 0; p < plane; ++p)
      for (std::int64_t c = 0; c < 3; ++c) *image++ = bytes[record.label_bytes + c * plane + p];
  }
}

std::shared_ptr<const TensorDataset> read_files(const std::vector<std::string>& paths,
                                                const Record& record,
                                                std::vector<std::string> class_names) {
  std::vector<std::int64_t> counts;
  std::int64_t total = 0;
  for (const std::string& path : paths) total += counts.emplace_back(count_images(path, record));
  const Tensor images = empty({total, side, side, 3}, {.dtype = uint8}),
               labels = empty({total}, {.dtype = int64});
  std::int64_t done = 0;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    read_file(paths[i], record, counts[i], images.data<std::uint8_t>() + done * pixels,
              labels.data<std::int64_t>() + done);
    done += counts[i];
  }
  return std::make_shared<TensorDataset>(images, labels, std::move(class_names));
}

// Reads the names of classes, one in each line; none where there is no such file.
std::vector<std::string> read_names(const std::string& path, std::int64_t classes) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  std::vector<std::string> names = read_class_names(path);
  if (static_cast<std::int64_t>(names.size()) != classes)
    fail<DataError>("data file {} is corrupt: it has {} names of classes, expected {}", path,
                    names.size(), classes);
  return names;
}

}  // namespace

std::shared_ptr<const TensorDataset> load_cifar10(const std::string& folder, Split split) {
  check_data_folder(folder, "the unpacked binary version of CIFAR-10 is looked for there");
  std::vector<std::string> paths;
  if (split == Split::test) paths = {folder + "/test_batch.bin"};
  else
    for (int i = 1; i <= 5; ++i) paths.push_back(fmt::format("{}/data_batch_{}.bin", folder, i));
  return read_files(
      paths, {},
      {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"});
}

std::shared_ptr<const TensorDataset> load_cifar100(const std::string& folder, Split split) {
  check_data_folder(folder, "the unpacked binary version of CIFAR-100 is looked for there");
  const Record record{.label_bytes = 2, .classes = 100};
  return read_files({folder + (split == Split::test ? "/test.bin" : "/train.bin")}, record,
                    read_names(folder + "/fine_label_names.txt", record.classes));
}

}  // namespace tutti::data
