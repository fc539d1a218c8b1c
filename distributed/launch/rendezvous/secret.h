// The secret of a run, which the ranks of a TCP store prove to each other that they know. Rank 0
// makes it at random and MPI broadcasts it, or the user gives it (text, file, environment), or
// rank 0 leaves a random one in a file for the ranks of its own host and user.
#pragma once

#include "../../../core/file_descriptor.h"

#include <optional>
#include <string>
#include <string_view>

namespace tutti::distributed::rendezvous {

/// A secret has at least 16 bytes and at most 4096.
constexpr std::size_t min_secret_bytes = 16, max_secret_bytes = 4096;

/// Returns a secret of 256 random bits. Throws a DistributedError where the system has none.
std::string random_secret();

/// Returns the HMAC-SHA256 of `message` under `key`, as 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view message);

/// Returns two lower-case hexadecimal digits for each byte.
std::string to_hex(std::string_view bytes);

/// Throws a ValueError where the secret is too short or too long; `source` names where it came
/// from.
void check_secret(const std::string& secret, const std::string& source);

/// Throws a DistributedError that begins with `why` and says how the ranks get the secret that they
/// need.
[[noreturn]] void throw_missing_secret(const std::string& why);

/// Returns the contents of a secret's file without the newlines at its end. Throws a
/// DistributedError where it is absent or others have rights to it, and a ValueError as
/// check_secret() does.
std::string read_secret_file(const std::string& path);

/// Returns the path of the file in which rank 0 leaves a random secret for the ranks of its host.
/// It lies in $XDG_RUNTIME_DIR or, without that, in /tmp/tutti-UID, both of which belong to this
/// user alone; `run_id`, `host` and `port` tell runs apart. `host` is the address of rank 0 as the
/// user wrote it, so all ranks must be given the same text. Throws a DistributedError where the
/// folder belongs to another user.
std::string path_of_host_secret(const std::string& run_id, const std::string& host, int port);

/// Returns that secret, or nothing while there is no such file.
std::optional<std::string> read_host_secret(const std::string& path);

/// A random secret in a file for the ranks of this host. The file replaces one that a killed rank 0
/// has left, and is removed with this object.
class HostSecret {
 public:
  explicit HostSecret(std::string path);
  ~HostSecret() { remove(); }
  HostSecret(const HostSecret&) = delete;
  HostSecret& operator=(const HostSecret&) = delete;
  const std::string& secret() const { return secret_; }
  /// Removes the file unless another one has replaced it: all ranks have read it.
  void remove();
  /// Leaves the file alone, for the child of a fork.
  void release() { path_.clear(); }

 private:
  std::string path_, secret_;
  FileDescriptor file_;
};

}  // namespace tutti::distributed::rendezvous
