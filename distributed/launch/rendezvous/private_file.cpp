#include "private_file.h"

#include "../../../core/error.h"
#include "crypto.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tutti::distributed::rendezvous {
namespace {

bool is_in_group(gid_t group) { return group == getegid() || group_member(group) != 0; }

}  // namespace

void throw_file_error(const char* action, const std::string& path) {
  fail<DistributedError>("rendezvous: cannot {} {}: {}", action, path, std::strerror(errno));
}

FileDescriptor open_private_file(const std::string& path, int flags, std::int64_t max_bytes,
                                 const char* purpose) {
  // O_NONBLOCK lets the open of a pipe return, which is refused below.
  FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600));
  if (!file.is_open()) {
    if (errno == ENOENT) return {};
    if (errno == ELOOP)
      fail<DistributedError>(
          "rendezvous: expected {} at {} to be a regular file, but it is a symbolic link; name the "
          "file itself",
          purpose, path);
    throw_file_error("open", path);
  }
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) throw_file_error("examine", path);
  const auto expect = [&](bool fits, const std::string& expected, const std::string& hint) {
    if (!fits)
      fail<DistributedError>("rendezvous: expected {} at {} to {}; {}", purpose, path, expected,
                             hint);
  };
  expect(S_ISREG(status.st_mode), "be a regular file", "name another one");
  // Kubernetes mounts secrets so: nobody but root can change them, and a group reads them.
  const bool is_mounted = status.st_uid == 0 && is_in_group(status.st_gid) &&
                          (status.st_mode & 0777 & ~0440U) == 0;
  expect(is_mounted || status.st_uid == geteuid(),
         fmt::format("belong to this user (uid {})", geteuid()),
         fmt::format("it belongs to uid {}; name another one", status.st_uid));
  expect(is_mounted || (status.st_mode & 077) == 0, "give rights to this user only",
         fmt::format("its mode is {:04o}; chmod 600 it, or make it anew if others may have read or "
                     "changed it",
                     status.st_mode & 07777));
  expect(status.st_size <= max_bytes, fmt::format("have at most {} bytes", max_bytes),
         fmt::format("it has {}; name another one", status.st_size));
  return file;
}

FileDescriptor make_draft(const std::string& path, std::string& draft) {
  draft = fmt::format("{}.{}.draft", path, to_hex(random_bytes(8)));
  FileDescriptor file(
      ::open(draft.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.is_open()) throw_file_error("create", draft);
  return file;
}

bool is_at_path(const FileDescriptor& file, const std::string& path) {
  struct stat at_path = {}, open = {};
  return lstat(path.c_str(), &at_path) == 0 && fstat(file.get(), &open) == 0 &&
         at_path.st_dev == open.st_dev && at_path.st_ino == open.st_ino;
}

void write_at(const FileDescriptor& file, std::int64_t offset, const std::string& bytes,
              const std::string& path) {
  for (std::size_t put = 0; put < bytes.size();) {
    const ssize_t n = pwrite(file.get(), bytes.data() + put, bytes.size() - put,
                             offset + static_cast<std::int64_t>(put));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_file_error("write", path);
    put += static_cast<std::size_t>(n);
  }
}

std::string read_from(const FileDescriptor& file, std::int64_t offset, const std::string& path) {
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) throw_file_error("examine", path);
  const std::int64_t size = std::max<std::int64_t>(0, status.st_size - offset);
  if (size > max_private_file_bytes)
    fail<DistributedError>("rendezvous: expected {} to have at most {} bytes, got {}; remove it",
                           path, max_private_file_bytes, status.st_size);
  std::string bytes(static_cast<std::size_t>(size), '\0');
  std::size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t n = pread(file.get(), bytes.data() + got, bytes.size() - got,
                            offset + static_cast<std::int64_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_file_error("read", path);
    if (n == 0) break;
    got += static_cast<std::size_t>(n);
  }
  bytes.resize(got);
  return bytes;
}

}  // namespace tutti::distributed::rendezvous
