#include "whole_file.h"

#include "error.h"

#include <fcntl.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace tutti {

WholeFile::WholeFile(std::string path) : path_(std::move(path)) {
  static std::atomic<int> counter{0};  // ranks that are threads may save at the same time
  draft_ = fmt::format("{}.tmp{}-{}", path_, ::getpid(), counter++);
  file_ = ::open(draft_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) stop();
}

WholeFile::~WholeFile() {
  if (file_ >= 0) ::close(file_);
  if (!committed_) ::unlink(draft_.c_str());
}

void WholeFile::write(const void* data, std::size_t bytes) {
  for (const char* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t written = ::write(file_, at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) stop();
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void WholeFile::commit() {
  if (::fsync(file_) != 0) stop();
  if (::close(std::exchange(file_, -1)) != 0) stop();
  if (::rename(draft_.c_str(), path_.c_str()) != 0) stop();
  committed_ = true;
  const auto folder = std::filesystem::path(path_).parent_path();
  if (const int fd =
          ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      fd >= 0) {
    ::fsync(fd);  // makes the rename durable; some file systems cannot, and the file is whole
                  // either way
    ::close(fd);
  }
}

void WholeFile::stop() const { fail<Error>("cannot write '{}': {}", path_, std::strerror(errno)); }

void write_whole(const std::string& path, const std::string& text) {
  WholeFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace tutti
