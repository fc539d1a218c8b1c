// AtomicFile writes a file that appears whole or not at all, also after a crash.
#pragma once

#include <cstddef>
#include <string>

namespace tutti {

/// AtomicFile writes to a temporary file beside `path`, which commit() renames to `path` and the
/// destructor removes otherwise. Every member throws an Error with the system's reason if it fails.
/// Several threads and processes may write the same path: the last commit() wins.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  /// Brings the data to the disk and then renames the file. After a crash `path` holds either the
  /// old file or the whole new one.
  void commit();

 private:
  [[noreturn]] void fail_with_errno() const;
  std::string path_, temporary_;
  int descriptor_ = -1;
  bool committed_ = false;
};

/// Writes a file that holds `text`, through an AtomicFile.
void write_file_atomically(const std::string& path, const std::string& text);

}  // namespace tutti
