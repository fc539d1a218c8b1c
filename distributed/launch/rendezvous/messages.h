// The messages of a TCP store as bytes: requests, replies, and the frames in which they travel. A
// number is 32 bits in the byte order of the host; a text is its length and its bytes; a frame is a
// message as a text. The first message of a connection is another one: greeting.h.
#pragma once

#include "store.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::distributed::rendezvous {

constexpr std::uint32_t max_request_bytes = 1u << 20;
/// A reply may list what thousands of ranks have written.
constexpr std::uint32_t max_reply_bytes = 1u << 26;

void write_number(std::string& message, std::uint32_t number);
void write_text(std::string& message, const std::string& text);

/// Reads numbers and texts off the front of a message. Once one is missing, `good` is false and
/// everything read is 0 or empty.
struct MessageReader {
  std::string_view rest;
  bool good = true;

  std::uint32_t number();
  std::string text();
};

/// Returns the message with its length in front.
std::string framed(const std::string& message);

enum class Taken { complete, incomplete, malformed };

/// Takes one message off the front of `input`, if all of it has arrived. It is malformed where its
/// length exceeds max_request_bytes.
Taken take_message(std::string& input, std::string& message);

std::string encode(const Request& request);
std::string encode(const Values& reply);
/// Returns false where the message is no request.
bool decode(const std::string& message, Request& request);
Values decode_reply(const std::string& message);

}  // namespace tutti::distributed::rendezvous
