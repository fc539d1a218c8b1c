#include "secret.h"

#include "../../../core/error.h"
#include "crypto.h"
#include "private_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace tutti::distributed::rendezvous {
namespace {

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

}  // namespace

std::string random_secret() { return random_bytes(32); }

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
  const FileDescriptor file = open_private_file(path, O_RDONLY, max_secret_bytes + 1, "the secret");
  if (!file.is_open())
    fail<DistributedError>(
        "rendezvous: there is no file {} with the secret; make it on every host with the same "
        "contents",
        path);
  std::string secret = read_from(file, 0, path);
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
  const FileDescriptor file =
      open_private_file(path, O_RDONLY | O_NOFOLLOW, max_secret_bytes, "the secret of this host");
  if (!file.is_open()) return {};
  std::string secret = read_from(file, 0, path);
  check_secret(secret, path);
  return secret;
}

HostSecret::HostSecret(std::string path) : path_(std::move(path)), secret_(random_secret()) {
  std::string draft;
  file_ = make_draft(path_, draft);
  try {
    write_at(file_, 0, secret_, draft);
    if (std::rename(draft.c_str(), path_.c_str()) != 0) throw_file_error("create", path_);
  } catch (...) {
    unlink(draft.c_str());
    throw;
  }
}

void HostSecret::remove() {
  if (!path_.empty() && is_at_path(file_, path_)) unlink(path_.c_str());
  path_.clear();
}

}  // namespace tutti::distributed::rendezvous
