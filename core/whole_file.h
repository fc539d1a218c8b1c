// WholeFile: a file that is there whole or not at all, also after a crash. What goes into it is its
// caller's.
#pragma once

#include <cstddef>
#include <string>

namespace tutti {

/// Written under another name beside `path`, which commit() renames to it; removed where that never
/// happens. All of them throw an Error with the system's reason. Several threads and processes may
/// write the same path: the last one stands.
class WholeFile {
 public:
  explicit WholeFile(std::string path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void write(const void* data, std::size_t bytes);
  /// The data reaches the disk before the name does: after a crash `path` holds the old file or the
  /// whole new one.
  void commit();

 private:
  [[noreturn]] void stop() const;
  std::string path_, draft_;
  int file_ = -1;
  bool committed_ = false;
};

/// A file of this text.
void write_whole(const std::string& path, const std::string& text);

}  // namespace tutti
