// The messages of a TCP store as bytes: a rank's hello, requests, replies. A number is 32 bits in
// the byte order of the host; a text is its length and its bytes. A message travels as a text,
// which TLS encrypts (tls.h).
#pragma once

#include "store.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::distributed::rendezvous {

constexpr std::size_t max_request_bytes = max_key_bytes + max_value_bytes + 16;
/// A reply may list the whole table.
constexpr std::size_t max_reply_bytes = max_table_bytes + 16;

void write_number(std::string& message, std::uint32_t number);
void write_text(std::string& message, std::string_view text);

/// Reads numbers and texts off the front of a message. Once one is missing, `good` is false and
/// everything read is 0 or empty.
struct MessageReader {
  std::string_view rest;
  bool good = true;

  std::uint32_t number();
  std::string text();
  /// Returns whether everything was there and nothing is left.
  bool is_complete() const { return good && rest.empty(); }
};

enum class ReadResult { complete, incomplete, malformed };

/// Takes the next message off the front of `input`, if all of it has arrived. It is malformed where
/// it claims more than `max_bytes`.
ReadResult take_message(std::string& input, std::size_t max_bytes, std::string& message);

/// How long each side waits for the other's part of the greeting: TLS, hello and rank 0's answer.
constexpr std::chrono::seconds greeting_timeout{5};

/// What a rank first tells rank 0, which answers why it refuses that; nothing where it does not.
struct Hello {
  std::uint32_t rank = 0, size = 0;
};

/// What rank 0 answers to a request: the values, or why it could not be carried out.
struct Reply {
  Values values = {};
  std::string error = {};
};

std::string encode(const Hello& hello);
std::string encode(const Request& request);
std::string encode(const Reply& reply);
/// Return false where the message is no hello, no request or no reply.
bool decode(const std::string& message, Hello& hello);
bool decode(const std::string& message, Request& request);
bool decode(const std::string& message, Reply& reply);

}  // namespace tutti::distributed::rendezvous
