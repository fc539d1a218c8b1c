#include "secret.h"

#include "../../../core/error.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace tutti::distributed::rendezvous {
namespace {

// Returns bytes that nobody can predict.
std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) != 1)
    fail<DistributedError>("rendezvous: OpenSSL has no random bytes for a secret");
  return bytes;
}

// Returns whether only this user can look into the folder and change it.
bool is_private_folder(const std::string& path) {
  struct stat status = {};
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && (status.st_mode & 077) == 0;
}

std::string private_folder() {
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime && is_private_folder(runtime))
    return runtime;
  std::string path = fmt::format("/tmp/tutti-{}", geteuid());
  mkdir(path.c_str(), 0700);
  if (!is_private_folder(path))
    fail<DistributedError>(
        "rendezvous: expected {} to be a folder with mode 0700 of this user, for the secret that "
        "the ranks of this host share; remove it, or give every rank a secret "
        "(TUTTI_RENDEZVOUS_SECRET_FILE)",
        path);
  return path;
}

[[noreturn]] void throw_file_error(const char* action, const std::string& path) {
  fail<DistributedError>("rendezvous: cannot {} {}: {}", action, path, std::strerror(errno));
}

bool is_in_group(gid_t group) { return group == getegid() || group_member(group) != 0; }

// Throws unless only this user has rights to the file, or it is mounted as Kubernetes does: nobody
// but root can change it, and a group of this user reads it. `purpose` names it: "the secret".
void check_private(const struct stat& status, const std::string& path, const char* purpose) {
  const auto expect = [&](bool fits, const std::string& expected, const std::string& hint) {
    if (!fits)
      fail<DistributedError>("rendezvous: expected {} at {} to {}; {}", purpose, path, expected,
                             hint);
  };
  expect(S_ISREG(status.st_mode), "be a regular file", "name another one");
  const bool is_mounted = status.st_uid == 0 && is_in_group(status.st_gid) &&
                          (status.st_mode & 0777 & ~0440U) == 0;
  expect(is_mounted || status.st_uid == geteuid(),
         fmt::format("belong to this user (uid {})", geteuid()),
         fmt::format("it belongs to uid {}; name another one", status.st_uid));
  expect(is_mounted || (status.st_mode & 077) == 0, "give rights to this user only",
         fmt::format("its mode is {:04o}; chmod 600 it, or make it anew if others may have read or "
                     "changed it",
                     status.st_mode & 07777));
}

// Returns the contents of a file that only this user may read, up to one byte more than a secret
// with its newline has; nothing where there is no such file.
std::optional<std::string> read_private_file(const std::string& path, int flags,
                                             const char* purpose) {
  // O_NONBLOCK lets the open of a pipe return, which is refused then.
  const FileDescriptor file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags));
  if (!file.is_open() && errno == ENOENT) return {};
  if (!file.is_open()) throw_file_error("open", path);  // such as a link, with O_NOFOLLOW
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) throw_file_error("examine", path);
  check_private(status, path, purpose);
  std::string bytes(max_secret_bytes + 2, '\0');
  std::size_t size = 0;
  for (ssize_t n = 1; n > 0 && size < bytes.size(); size += static_cast<std::size_t>(n))
    if ((n = read(file.get(), bytes.data() + size, bytes.size() - size)) < 0)
      throw_file_error("read", path);
  bytes.resize(size);
  return bytes;
}

}  // namespace

std::string random_secret() { return random_bytes(32); }

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::string code(32, '\0');
  if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
            reinterpret_cast<const unsigned char*>(message.data()), message.size(),
            reinterpret_cast<unsigned char*>(code.data()), nullptr))
    fail<DistributedError>("rendezvous: OpenSSL cannot compute an HMAC-SHA256 here");
  return code;
}

std::string to_hex(std::string_view bytes) {
  std::string digits;
  for (const char byte : bytes) digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return digits;
}

void check_secret(const std::string& secret, const std::string& source) {
  if (secret.size() < min_secret_bytes || secret.size() > max_secret_bytes)
    fail<ValueError>(
        "rendezvous: expected a secret of {} to {} bytes, but {} has {}; make one with 'openssl "
        "rand -hex 32'",
        min_secret_bytes, max_secret_bytes, source, secret.size());
}

void throw_missing_secret(const std::string& why) {
  fail<DistributedError>(
      "{}, without which anybody in the network could take part. Give every rank the same one: "
      "TUTTI_RENDEZVOUS_SECRET_FILE names a file (chmod 600) that 'openssl rand -hex 32' has "
      "written, or TUTTI_RENDEZVOUS_SECRET holds it; or start the ranks with mpirun and without "
      "MASTER_ADDR",
      why);
}

std::string read_secret_file(const std::string& path) {
  std::optional<std::string> found = read_private_file(path, 0, "the secret");
  if (!found)
    fail<DistributedError>(
        "rendezvous: there is no file {} with the secret; make it on every host with the same "
        "contents",
        path);
  std::string secret = *std::move(found);
  while (secret.ends_with('\n') || secret.ends_with('\r')) secret.pop_back();
  check_secret(secret, path);
  return secret;
}

std::string path_of_host_secret(const std::string& run_id, const std::string& host, int port) {
  // A digest, because a run id may contain anything. No name of a host has a newline.
  const std::string digest =
      to_hex(hmac_sha256("tutti run id", host + '\n' + run_id)).substr(0, 16);
  return fmt::format("{}/tutti-rendezvous-{}-{}", private_folder(), port, digest);
}

std::optional<std::string> read_host_secret(const std::string& path) {
  std::optional<std::string> secret =
      read_private_file(path, O_NOFOLLOW, "the secret of this host");
  if (secret) check_secret(*secret, path);
  return secret;
}

HostSecret::HostSecret(std::string path) : path_(std::move(path)), secret_(random_secret()) {
  // Nobody can predict the name of the draft, and nobody reads a file that is half written.
  const std::string draft = fmt::format("{}.{}.draft", path_, to_hex(random_bytes(8)));
  file_ = FileDescriptor(
      ::open(draft.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file_.is_open()) throw_file_error("create", draft);
  const auto size = static_cast<ssize_t>(secret_.size());
  if (write(file_.get(), secret_.data(), secret_.size()) != size ||
      std::rename(draft.c_str(), path_.c_str()) != 0) {
    const int why = errno;
    unlink(draft.c_str());
    errno = why;
    throw_file_error("write", path_);
  }
}

void HostSecret::remove() {
  struct stat at_path = {}, own = {};
  if (!path_.empty() && lstat(path_.c_str(), &at_path) == 0 && fstat(file_.get(), &own) == 0 &&
      at_path.st_dev == own.st_dev && at_path.st_ino == own.st_ino)
    unlink(path_.c_str());
  path_.clear();
}

}  // namespace tutti::distributed::rendezvous
