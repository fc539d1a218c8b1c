#include "data_file.h"

#include "../core/error.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace tutti::data {

std::int64_t data_file_size(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) fail<DataError>("data file {} is missing", path);
  if (!std::filesystem::is_regular_file(status))
    fail<DataError>("data file {} is not a regular file", path);
  const auto size = std::filesystem::file_size(path, error);
  if (error) fail<DataError>("data file {} cannot be read: {}", path, error.message());
  return static_cast<std::int64_t>(size);
}

void fail_unreadable(const std::string& text, int error_number) {
  const std::string message = text + ": " + std::strerror(error_number);
  for (const int lasting : {EACCES, EPERM, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, EISDIR})
    if (error_number == lasting) throw DataError(message);
  throw FileError(message);
}

bool has_picture_name(const std::string& name) {
  std::string ending = std::filesystem::path(name).extension().string();
  for (char& c : ending) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  constexpr std::array endings{".jpg",  ".jpeg", ".jfif", ".png", ".gif", ".bmp",
                               ".webp", ".tif",  ".tiff", ".ppm", ".pgm", ".heic",
                               ".heif", ".avif", ".jp2",  ".jxl"};
  return !name.starts_with('.') && std::ranges::find(endings, ending) != endings.end();
}

std::vector<FolderEntry> list_folder(const std::string& folder) {
  std::vector<FolderEntry> entries;
  try {
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (std::string name = entry.path().filename().string(); !name.starts_with('.'))
        entries.push_back({std::move(name), entry.is_directory()});
  } catch (const std::filesystem::filesystem_error& error) {
    fail<DataError>("cannot list the folder {}: {}", folder, error.code().message());
  }
  std::ranges::sort(entries, {}, &FolderEntry::name);
  return entries;
}

void check_data_folder(const std::string& folder, const char* advice) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    fail<DataError>("data folder {} is missing; {}", folder, advice);
}

}  // namespace tutti::data
