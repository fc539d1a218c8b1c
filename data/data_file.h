// What the readers of data files share: the size of a file and of its folder, checked before
// anything is opened.
#pragma once

#include <cstdint>
#include <string>

namespace tutti::data {

/// Returns the size of a data file in bytes. Throws a DataError unless it is a regular file, since
/// a folder, a pipe or a device has no end that could be checked.
std::int64_t data_file_size(const std::string& path);

/// Throws a DataError that ends with `advice` unless `folder` is a folder.
void check_data_folder(const std::string& folder, const char* advice);

}  // namespace tutti::data
