#include "atomic_file.h"

#include "error.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>

namespace tutti {
namespace {

constexpr std::string_view draft_mark = ".draft-";
constexpr std::size_t draft_digits = 16;  // hexadecimal, of 64 random bits

// Returns the part of a file's name with which the names of its drafts begin: all of it, unless the
// drafts' names would be longer than a folder takes.
std::string_view draft_stem(std::string_view name) {
  return name.substr(0, NAME_MAX - draft_mark.size() - draft_digits);
}

// Returns the stem of `name` if that is the name of a draft, else an empty text.
std::string_view stem_of_draft(std::string_view name) {
  const std::size_t mark = name.rfind(draft_mark);
  if (mark == std::string_view::npos) return {};
  const std::string_view digits = name.substr(mark + draft_mark.size());
  const bool is_draft = digits.size() == draft_digits &&
                        digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  return is_draft ? name.substr(0, mark) : std::string_view();
}

// Removes a draft of this user that nobody has locked. The lock is held until the draft is gone, so
// a living writer that has yet to lock its draft finds it locked or removed, and makes another.
void remove_if_dead(int folder, const char* draft) {
  const FileDescriptor file(
      ::openat(folder, draft, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status = {};
  if (file.is_open() && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
      status.st_uid == ::geteuid() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0)
    ::unlinkat(folder, draft, 0);
}

// Removes the dead drafts in the opened folder for whose stems `is_wanted` returns true.
// Errors are ignored: a draft that stays is a waste of disk, not a reason to fail.
template <class IsWanted>
void remove_dead_drafts_in(int folder, const IsWanted& is_wanted) {
  const int listing = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (listing < 0) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(listing), ::closedir);
  if (!entries) {
    ::close(listing);
    return;
  }
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view stem = stem_of_draft(entry->d_name);
    if (!stem.empty() && is_wanted(stem)) remove_if_dead(folder, entry->d_name);
  }
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path)
    : path_(path), name_(std::filesystem::path(path).filename()) {
  if (name_.empty()) fail<FileError>("cannot write '{}': it names a folder, not a file", path_);
  open_folder();
  examine_target();
  remove_dead_drafts_in(folder_.get(),
                        [&](std::string_view stem) { return stem == draft_stem(name_); });
  create_draft();
}

AtomicFile::~AtomicFile() {
  if (!draft_.empty()) ::unlinkat(folder_.get(), draft_.c_str(), 0);
}

// All later calls are relative to the opened folder, so that they meet the same folder even if it
// is renamed or the process changes its working directory.
void AtomicFile::open_folder() {
  const auto folder = std::filesystem::path(path_).parent_path();
  folder_ = FileDescriptor(
      ::open(folder.empty() ? "." : folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder_.is_open()) fail_with_errno();
}

// Refuses what is not a regular file, and notes the permissions of the file that will be replaced.
void AtomicFile::examine_target() {
  struct stat status = {};
  if (::fstatat(folder_.get(), name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return;
    fail_with_errno();
  }
  if (!S_ISREG(status.st_mode))
    fail<FileError>("cannot write '{}': it is {}, not a regular file; {}", path_,
                    kind_of(status.st_mode),
                    S_ISLNK(status.st_mode) ? "name the file that it points to, or remove it"
                                            : "name another path");
  old_permissions_ = status.st_mode & 0777;
}

void AtomicFile::create_draft() {
  // Until it replaces the old file, the draft is no more readable than the old file can be.
  const mode_t permissions = old_permissions_ ? 0600 : 0666;
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::uint64_t random = 0;
    if (::getentropy(&random, sizeof random) != 0) fail_with_errno();
    const std::string name = fmt::format("{}{}{:016x}", draft_stem(name_), draft_mark, random);
    file_ =
        FileDescriptor(::openat(folder_.get(), name.c_str(),
                                O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, permissions));
    if (!file_.is_open() && errno == EEXIST) continue;
    if (!file_.is_open()) fail_with_errno();
    draft_ = name;
    // A file system without locks has none of its drafts removed by others.
    const bool is_locked = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    struct stat status = {};
    if (is_locked && ::fstat(file_.get(), &status) == 0 && status.st_nlink > 0) return;
    ::unlinkat(folder_.get(), std::exchange(draft_, {}).c_str(), 0);  // another writer swept it
  }
  fail<FileError>("cannot write '{}': other writers keep on removing its draft", path_);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  for (const char* next = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t written = ::write(file_.get(), next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with_errno();
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (old_permissions_ && ::fchmod(file_.get(), *old_permissions_) != 0) fail_with_errno();
  if (::fsync(file_.get()) != 0) fail_with_errno();
  // The file stays open, and the draft locked, until the draft has its final name.
  if (::renameat(folder_.get(), draft_.c_str(), folder_.get(), name_.c_str()) != 0)
    fail_with_errno();
  draft_.clear();
  file_ = {};
  // The rename is durable once its folder is on the disk. Some folders cannot be opened or synced;
  // the file is whole either way.
  const FileDescriptor folder(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.is_open() && ::fsync(folder.get()) != 0 && errno == EIO) fail_with_errno();
}

void AtomicFile::fail_with_errno() const {
  fail<FileError>("cannot write '{}': {}", path_, std::strerror(errno));
}

void remove_dead_drafts(const std::string& folder) {
  const FileDescriptor opened(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (opened.is_open()) remove_dead_drafts_in(opened.get(), [](std::string_view) { return true; });
}

void write_file_atomically(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace tutti
