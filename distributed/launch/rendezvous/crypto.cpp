#include "crypto.h"

#include "../../../core/error.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

namespace tutti::distributed::rendezvous {
namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}
unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

}  // namespace

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(bytes_of(bytes), static_cast<int>(count)) != 1)
    fail<DistributedError>("rendezvous: OpenSSL has no random bytes for a secret");
  return bytes;
}

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::string code(hmac_size, '\0');
  if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(message),
            message.size(), bytes_of(code), nullptr))
    fail<DistributedError>("rendezvous: OpenSSL cannot compute an HMAC-SHA256 here");
  return code;
}

bool is_equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(std::string_view bytes) {
  std::string digits;
  for (const char byte : bytes) digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return digits;
}

}  // namespace tutti::distributed::rendezvous
