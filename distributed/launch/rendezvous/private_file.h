// Files that only this user can read and write: secrets, and the file of a file store. Their mode
// is their protection, so every file that others could have made or could change is refused.
#pragma once

#include "../../../core/file_descriptor.h"

#include <cstdint>
#include <string>

namespace tutti::distributed::rendezvous {

/// No file of a rendezvous may have more bytes.
constexpr std::int64_t max_private_file_bytes = std::int64_t{1} << 29;

/// Opens a file with the flags of open(); O_CREAT makes it with mode 0600. Returns no descriptor
/// where it does not exist. Throws a DistributedError that says what to do where it is no regular
/// file, belongs to another user, gives rights to others, or has more than `max_bytes`. A file of
/// root that only root and a group of this user can read, and nobody write, is accepted. `purpose`
/// names it in errors: "the secret".
FileDescriptor open_private_file(const std::string& path, int flags, std::int64_t max_bytes,
                                 const char* purpose);

/// Makes a new file beside `path` that only this user can read and write, with a name that nobody
/// can predict. Sets `draft` to its path. Throws a DistributedError.
FileDescriptor make_draft(const std::string& path, std::string& draft);

/// Returns whether the path leads to this open file, and not to another one or a link.
bool is_at_path(const FileDescriptor& file, const std::string& path);

/// Writes all bytes at `offset`. Throws a DistributedError that names `path`.
void write_at(const FileDescriptor& file, std::int64_t offset, const std::string& bytes,
              const std::string& path);

/// Returns the bytes from `offset` to the end. Throws a DistributedError that names `path`.
std::string read_from(const FileDescriptor& file, std::int64_t offset, const std::string& path);

/// Throws a DistributedError: "rendezvous: cannot ACTION PATH: " and the reason in errno.
[[noreturn]] void throw_file_error(const char* action, const std::string& path);

}  // namespace tutti::distributed::rendezvous
