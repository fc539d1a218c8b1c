// FileDescriptor owns an open file of the system and closes it.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace tutti {

/// Owns a file descriptor, or none. It can be moved, and its destructor closes the file.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  /// Where a standard stream is closed, the system gives its number to the next file, which would
  /// get what the program prints. Such a descriptor is replaced by one of another number.
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {
    if (descriptor < 0 || descriptor > STDERR_FILENO) return;
    descriptor_ = ::fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    ::close(descriptor);
  }
  FileDescriptor(FileDescriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~FileDescriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

}  // namespace tutti
