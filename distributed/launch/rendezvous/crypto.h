// The cryptography of a TCP store, all of it OpenSSL's: random bytes, HMAC-SHA256, and a comparison
// whose duration does not tell where two texts differ.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tutti::distributed::rendezvous {

/// The number of bytes of an HMAC-SHA256.
constexpr std::size_t hmac_size = 32;

/// Returns bytes that nobody can predict. Throws a DistributedError where the system has none.
std::string random_bytes(std::size_t count);

/// Returns the HMAC-SHA256 of `message` under `key`, as 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view message);

/// Returns whether the texts are equal, in a time that depends on their lengths only.
bool is_equal_in_constant_time(std::string_view a, std::string_view b);

/// Returns two lower-case hexadecimal digits for each byte.
std::string to_hex(std::string_view bytes);

}  // namespace tutti::distributed::rendezvous
