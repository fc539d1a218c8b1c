#include "data_file.h"

#include "../core/error.h"
#include "../core/excerpt.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
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
      if (std::string name = entry.path().filename().string(); !name.starts_with('.')) {
        std::error_code error;  // a link that leads nowhere is no folder, and no error
        const bool is_folder = entry.is_directory(error);
        if (error && error != std::errc::no_such_file_or_directory &&
            error != std::errc::not_a_directory)
          fail<DataError>("cannot follow {}/{}: {}; remove the link, or what it leads to", folder,
                          name, error.message());
        entries.push_back({std::move(name), is_folder});
      }
  } catch (const std::filesystem::filesystem_error& error) {
    fail<DataError>("cannot list the folder {}: {}", folder, error.code().message());
  }
  std::ranges::sort(entries, {}, &FolderEntry::name);
  return entries;
}

std::vector<std::string> read_class_names(const std::string& path) {
  constexpr std::int64_t most_bytes = 1 << 16;
  if (data_file_size(path) > most_bytes)
    fail<DataError>("data file {} is too long for a list of names: more than {} bytes", path,
                    most_bytes);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_unreadable(fmt::format("cannot open {}", path), errno);
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line); names.push_back(std::move(line))) {
    const std::size_t number = names.size() + 1;
    if (number == 1 && (line.starts_with("\xFF\xFE") || line.starts_with("\xFE\xFF")))
      fail<DataError>("{} is UTF-16; expected UTF-8, save it so", path);
    if (number == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);  // a byte order mark
    if (line.ends_with('\r')) line.pop_back();
    if (!is_printable(line))
      fail<DataError>("{}: line {} ('{}') is not UTF-8, or has control characters", path, number,
                      excerpt(line));
  }
  while (!names.empty() && names.back().empty()) names.pop_back();
  if (const auto empty = std::ranges::find(names, ""); empty != names.end())
    fail<DataError>("{}: line {} is empty, which would shift the classes behind it; remove it",
                    path, empty - names.begin() + 1);
  return names;
}

void check_data_folder(const std::string& folder, const char* advice) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    fail<DataError>("data folder {} is missing; {}", folder, advice);
}

}  // namespace tutti::data
