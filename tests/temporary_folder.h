// TemporaryFolder: a new folder of one test. Test programs may run side by side, so its name is one
// that no other program has. content() reads a file.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace tutti::test {

/// A new folder under TMPDIR, which the destructor removes with all that is in it.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& name = "test") {
    std::string path =
        (std::filesystem::temp_directory_path() / ("tutti_" + name + "_XXXXXX")).string();
    if (!mkdtemp(path.data())) throw std::runtime_error("mkdtemp failed for " + path);
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  /// Returns the path of an entry.
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// Returns the bytes of a file; none where it cannot be read.
inline std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace tutti::test
