#include "image_folder.h"

#include "data_file.h"

#include <algorithm>
#include <filesystem>
#include <utility>

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

// Returns the entries of a folder, without hidden ones, for which `keep` returns true, sorted.
template <class Keep>
std::vector<std::string> list(const std::string& folder, Keep keep) {
  std::vector<std::string> names;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      if (std::string name = entry.path().filename().string();
          !name.starts_with('.') && keep(entry))
        names.push_back(std::move(name));
  } catch (const fs::filesystem_error& error) {
    fail<DataError>("cannot list the folder {}: {}", folder, error.code().message());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> list_folders(const std::string& folder) {
  return list(folder, [](const fs::directory_entry& e) { return e.is_directory(); });
}

// Appends `folder` and every folder below it to `found`. Throws a DataError beyond 64 levels,
// because a symbolic link to a parent folder makes the recursion endless.
void collect_folders(const std::string& folder, int depth, std::vector<std::string>& found) {
  constexpr int deepest = 64;
  if (depth > deepest)
    fail<DataError>(
        "the folder {} lies more than {} folders deep; is there a link to a folder above it?",
        folder, deepest);
  found.push_back(folder);
  for (const std::string& name : list_folders(folder))
    collect_folders(folder + "/" + name, depth + 1, found);
}

// Returns the paths of the images of a class: folders in the order of their paths, then files in
// the order of their names. Adds the number of the other files to `others`.
std::vector<std::string> list_images(const std::string& folder, std::int64_t& others) {
  std::vector<std::string> folders, paths;
  collect_folders(folder, 0, folders);
  std::sort(folders.begin(), folders.end());
  for (const std::string& f : folders)
    for (const std::string& name :
         list(f, [](const fs::directory_entry& e) { return !e.is_directory(); })) {
      if (has_picture_name(name)) paths.push_back(f + "/" + name);
      else ++others;
    }
  return paths;
}

}  // namespace

ImageFolder::ImageFolder(const std::string& root, Options options) : options_(options) {
  std::error_code ignored;
  if (!fs::is_directory(root, ignored))
    fail<DataError>(
        "the data folder {} does not exist, or is no folder that can be read; expected "
        "{}/CLASS/*.jpg",
        root, root);
  class_names_ = list_folders(root);
  if (class_names_.empty())
    fail<DataError>(
        "the data folder {} has no folders; expected one for each class: {}/CLASS/*.jpg", root,
        root);
  for (std::size_t label = 0; label < class_names_.size(); ++label) {
    const std::string folder = root + "/" + class_names_[label];
    std::vector<std::string> paths = list_images(folder, other_files_);
    if (paths.empty())
      fail<DataError>(
          "the class folder {} has no images (*.jpg, *.jpeg, *.jfif or *.png, not hidden); add "
          "some, or "
          "remove the folder",
          folder);
    for (std::string& path : paths)
      files_.push_back({std::move(path), static_cast<std::int64_t>(label)});
  }
}

std::string ImageFolder::describe(std::int64_t index) const {
  check_index(index);
  return files_[static_cast<std::size_t>(index)].path;
}

bool ImageFolder::is_known_broken(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  return broken_.contains(index);
}

Sample ImageFolder::get(std::int64_t index) const {
  check_index(index);
  for (std::size_t tried = 0; tried < files_.size(); ++tried) {
    const std::size_t at = (static_cast<std::size_t>(index) + tried) % files_.size();
    if (is_known_broken(at)) continue;
    const File& file = files_[at];
    try {
      return {read_image(file.path, options_.decode), file.label, file.path};
    } catch (const DataError& error) {
      if (options_.broken_files == BrokenFiles::fatal) throw;
      const std::lock_guard lock(mutex_);
      broken_.emplace(at, error.what());
    }
  }
  fail<DataError>("none of the {} files can be decoded; the first one: {}", files_.size(),
                  broken_files().front().reason);
}

std::vector<ImageFolder::BrokenFile> ImageFolder::broken_files() const {
  const std::lock_guard lock(mutex_);
  std::vector<BrokenFile> files;
  for (const auto& [index, reason] : broken_)
    files.push_back({static_cast<std::int64_t>(index), files_[index].path, reason});
  return files;
}

}  // namespace tutti::data
