#include "image_folder.h"

#include "data_file.h"

#include <map>

namespace tutti::data {
namespace {

// Adds the paths of the images in `folder` and below it to those of their folders, in the order of
// their names, and the number of the other files to `others`. Throws a DataError beyond 64 levels,
// because a symbolic link to a parent folder makes the recursion endless.
void collect_images(const std::string& folder, int depth,
                    std::map<std::string, std::vector<std::string>>& images, std::int64_t& others) {
  constexpr int deepest = 64;
  if (depth > deepest)
    fail<DataError>(
        "the folder {} lies more than {} folders deep; is there a link to a folder above it?",
        folder, deepest);
  for (const auto& [name, is_folder] : list_folder(folder)) {
    const std::string path = folder + "/" + name;
    if (is_folder) collect_images(path, depth + 1, images, others);
    else if (has_picture_name(name)) images[folder].push_back(path);
    else ++others;
  }
}

}  // namespace

ImageFolder::ImageFolder(const std::string& root, Options options) : options_(options) {
  check_data_folder(root, "expected CLASS/*.jpg in it");
  for (const auto& [name, is_folder] : list_folder(root))
    if (is_folder) class_names_.push_back(name);
  if (class_names_.empty())
    fail<DataError>(
        "the data folder {} has no folders; expected one for each class: {}/CLASS/*.jpg", root,
        root);
  for (std::size_t label = 0; label < class_names_.size(); ++label) {
    const std::string folder = root + "/" + class_names_[label];
    std::map<std::string, std::vector<std::string>> images;
    collect_images(folder, 0, images, other_files_);
    if (images.empty())
      fail<DataError>(
          "the class folder {} has no images (*.jpg, *.jpeg, *.jfif or *.png, not hidden); add "
          "some, or "
          "remove the folder",
          folder);
    for (const auto& [_, paths] : images)
      for (const std::string& path : paths)
        files_.push_back({path, static_cast<std::int64_t>(label)});
  }
}

std::string ImageFolder::describe(std::int64_t index) const {
  check_index(index);
  return files_[static_cast<std::size_t>(index)].path;
}

Sample ImageFolder::get(std::int64_t index) const {
  check_index(index);
  const File& file = files_[static_cast<std::size_t>(index)];
  return {read_image(file.path, options_.decode), file.label, file.path};
}

}  // namespace tutti::data
