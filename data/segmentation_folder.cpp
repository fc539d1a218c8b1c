#include "segmentation_folder.h"

#include "data_file.h"
#include "transforms/masked.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>

namespace tutti::data {
namespace {

// Returns the paths of a folder's pictures by their names without endings.
std::map<std::string, std::string> files_by_stem(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& [name, is_folder] : list_folder(folder)) {
    if (is_folder || !has_picture_name(name)) continue;
    const auto [other, is_new] =
        files.emplace(std::filesystem::path(name).stem().string(), folder + "/" + name);
    if (!is_new)
      fail<DataError>("{} and {}/{} have one name; remove one", other->second, folder, name);
  }
  return files;
}

std::vector<std::string> read_class_names(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail_unreadable(fmt::format("cannot open {}", path), errno);
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (names.empty() || names.size() > 255)
    fail<DataError>("{}: expected the names of 1 to 255 classes, one on each line, got {}", path,
                    names.size());
  return names;
}

}  // namespace

SegmentationFolder::SegmentationFolder(const std::string& root, Options options)
    : options_(options) {
  if (options.decode.min_size != 0)
    fail<ValueError>("SegmentationFolder: expected a decode.min_size of 0, got {}",
                     options.decode.min_size);
  check_data_folder(root, "expected images/, masks/ and classes.txt in it");
  class_names_ = read_class_names(root + "/classes.txt");
  const auto images = files_by_stem(root + "/images");
  auto masks = files_by_stem(root + "/masks");
  for (const auto& [stem, image] : images) {
    const auto mask = masks.find(stem);
    if (mask == masks.end())
      fail<DataError>("{} has no mask; expected {}/masks/{}.png", image, root, stem);
    files_.push_back({image, mask->second});
    masks.erase(mask);
  }
  if (!masks.empty())
    fail<DataError>("{} has no image; expected {}/images/{}.*", masks.begin()->second, root,
                    masks.begin()->first);
  if (files_.empty()) fail<DataError>("the folder {}/images has no images", root);
}

std::string SegmentationFolder::describe(std::int64_t index) const {
  check_index(index);
  return files_[static_cast<std::size_t>(index)].image;
}

void SegmentationFolder::check_values(const Tensor& mask, const std::string& path) const {
  const std::uint8_t* values = mask.data<std::uint8_t>();
  const auto classes = static_cast<std::int64_t>(class_names_.size());
  for (std::int64_t i = 0; i < mask.numel(); ++i)
    if (values[i] >= classes && values[i] != options_.ignore_index)
      fail<DataError>("{}: expected classes from 0 to {} (or {}), got {} in row {}, column {}",
                      path, classes - 1, options_.ignore_index, values[i], i / mask.size(1),
                      i % mask.size(1));
}

Sample SegmentationFolder::get(std::int64_t index) const {
  check_index(index);
  const Files& files = files_[static_cast<std::size_t>(index)];
  const Tensor image = read_image(files.image, options_.decode),
               mask = read_mask(files.mask, options_.decode);
  if (mask.size(0) != image.size(0) || mask.size(1) != image.size(1))
    fail<DataError>("{}: expected a mask of {} x {} pixels, as {} has, got {} x {}", files.mask,
                    image.size(0), image.size(1), files.image, mask.size(0), mask.size(1));
  check_values(mask, files.mask);
  return {.image = join_mask(image, mask), .name = files.image};
}

}  // namespace tutti::data
