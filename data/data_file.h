// The readers of data files share these checks: those of a file and its folder before anything is
// opened, and what an error of the system means.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::data {

/// Returns the size of a data file in bytes. Throws a DataError unless it is a regular file, since
/// a folder, a pipe or a device has no end that could be checked.
std::int64_t data_file_size(const std::string& path);

/// Throws an error that says that the system cannot open or read what `text` names: a DataError
/// where that lies in the file itself (no permission, a link to itself), and a FileError where
/// trying again may help (no free descriptor, a disk that does not answer).
[[noreturn]] void fail_unreadable(const std::string& text, int error_number);

/// Returns whether a file of a folder is taken for a picture, by its name: it ends like those of
/// image formats, also of ones that decode_image() only names, such as .webp, and is not hidden:
/// names that begin with a '.' (.ipynb_checkpoints, ._1.jpg) never count.
bool has_picture_name(const std::string& name);

/// An entry of a folder. A link is a folder if it leads to one.
struct FolderEntry {
  std::string name;
  bool is_folder = false;
};
/// Returns the entries of a folder, without hidden ones, in the order of their names. Throws a
/// DataError that names the folder if it cannot be read.
std::vector<FolderEntry> list_folder(const std::string& folder);

/// Reads the names of classes from a text file in UTF-8, one on each line; empty lines may follow
/// the last one, and a byte order mark does not count. Throws a DataError that names the file, and
/// the line where there is one: for another encoding, an empty line between names, control
/// characters, or a file of more than 64 KiB.
std::vector<std::string> read_class_names(const std::string& path);

/// Throws a DataError that ends with `advice` unless `folder` is a folder.
void check_data_folder(const std::string& folder, const char* advice);

}  // namespace tutti::data
