// The messages of a TCP store as bytes: requests, replies, and the frames in which they travel. A
// number is 32 bits in the byte order of the host; a text is its length and its bytes; a frame is a
// message, with its length in front and a message authentication code behind. The first messages of
// a connection are others: greeting.h.
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

/// One direction of a connection after the greeting: it numbers and signs the messages that one
/// side sends, and the other side checks them. A message that was changed, left out, repeated or
/// sent by anybody else is malformed, and the connection must then end.
class AuthenticatedStream {
 public:
  enum class Sender : char { client = 'c', server = 's' };

  /// `key` is the key that the greeting has agreed on.
  AuthenticatedStream(std::string key, Sender sender) : key_(std::move(key)), sender_(sender) {}

  /// Returns the next message as a frame: its length, its bytes and its code.
  std::string frame(const std::string& message);
  /// Takes the next message off the front of `input`, if all of it has arrived. It is malformed
  /// also where it claims more than `max_bytes`.
  ReadResult take(std::string& input, std::size_t max_bytes, std::string& message);

  /// How many bytes a frame has besides its message.
  static constexpr std::size_t frame_overhead = 4 + 16;

 private:
  std::string code(std::string_view message) const;

  std::string key_;
  Sender sender_;
  std::uint64_t messages_ = 0;  // how many have been framed or taken
};

/// What rank 0 answers to a request: the values, or why it could not be carried out.
struct Reply {
  Values values = {};
  std::string error = {};
};

std::string encode(const Request& request);
std::string encode(const Reply& reply);
/// Return false where the message is no request or no reply.
bool decode(const std::string& message, Request& request);
bool decode(const std::string& message, Reply& reply);

}  // namespace tutti::distributed::rendezvous
