#include "atomic_file.h"

#include "error.h"

#include <fcntl.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace tutti {

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  static std::atomic<int> counter{0};  // ranks that are threads may save at the same time
  temporary_ = fmt::format("{}.tmp{}-{}", path_, ::getpid(), counter++);
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail_with_errno();
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!committed_) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  for (const char* next = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t written = ::write(descriptor_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with_errno();
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail_with_errno();
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_with_errno();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_with_errno();
  committed_ = true;
  // The rename is durable once its folder is on the disk. Some file systems cannot sync a folder;
  // the file is whole either way.
  const auto folder = std::filesystem::path(path_).parent_path();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

void AtomicFile::fail_with_errno() const {
  fail<Error>("cannot write '{}': {}", path_, std::strerror(errno));
}

void write_file_atomically(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace tutti
