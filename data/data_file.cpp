#include "data_file.h"

#include "../core/error.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

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

void check_data_folder(const std::string& folder, const char* advice) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    fail<DataError>("data folder {} is missing; {}", folder, advice);
}

}  // namespace tutti::data
