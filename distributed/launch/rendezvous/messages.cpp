#include "messages.h"

#include "crypto.h"

#include <cstring>

namespace tutti::distributed::rendezvous {
namespace {

constexpr std::size_t code_size = AuthenticatedStream::frame_overhead - sizeof(std::uint32_t);

}  // namespace

void write_number(std::string& message, std::uint32_t number) {
  message.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void write_text(std::string& message, std::string_view text) {
  write_number(message, static_cast<std::uint32_t>(text.size()));
  message += text;
}

std::uint32_t MessageReader::number() {
  std::uint32_t value = 0;
  good = good && rest.size() >= sizeof(value);
  if (!good) return 0;
  std::memcpy(&value, rest.data(), sizeof(value));
  rest.remove_prefix(sizeof(value));
  return value;
}

std::string MessageReader::text() {
  const std::uint32_t size = number();
  good = good && rest.size() >= size;
  if (!good) return {};
  std::string value(rest.substr(0, size));
  rest.remove_prefix(size);
  return value;
}

// The code covers the direction and the number, so that no message can stand for another one.
std::string AuthenticatedStream::code(std::string_view message) const {
  std::string text(1, static_cast<char>(sender_));
  write_number(text, static_cast<std::uint32_t>(messages_));
  write_number(text, static_cast<std::uint32_t>(messages_ >> 32));
  write_text(text, message);
  return hmac_sha256(key_, text).substr(0, code_size);
}

std::string AuthenticatedStream::frame(const std::string& message) {
  std::string bytes;
  write_text(bytes, message);
  bytes += code(message);
  ++messages_;
  return bytes;
}

ReadResult AuthenticatedStream::take(std::string& input, std::size_t max_bytes,
                                     std::string& message) {
  std::uint32_t size = 0;
  if (input.size() < sizeof(size)) return ReadResult::incomplete;
  std::memcpy(&size, input.data(), sizeof(size));
  if (size > max_bytes) return ReadResult::malformed;
  if (input.size() - sizeof(size) < size + code_size) return ReadResult::incomplete;
  const std::string_view all(input), content = all.substr(sizeof(size), size);
  if (!is_equal_in_constant_time(code(content), all.substr(sizeof(size) + size, code_size)))
    return ReadResult::malformed;
  message = content;
  input.erase(0, sizeof(size) + size + code_size);
  ++messages_;
  return ReadResult::complete;
}

std::string encode(const Request& request) {
  std::string message;
  write_number(message, static_cast<std::uint32_t>(request.operation));
  write_text(message, request.key);
  write_text(message, request.value);
  return message;
}

std::string encode(const Reply& reply) {
  std::string message;
  write_text(message, reply.error);
  for (const auto& [key, value] : reply.values) {
    write_text(message, key);
    write_text(message, value);
  }
  return message;
}

bool decode(const std::string& message, Request& request) {
  MessageReader reader{message};
  const std::uint32_t operation = reader.number();
  request.key = reader.text();
  request.value = reader.text();
  if (operation > static_cast<std::uint32_t>(Request::Operation::leave)) return false;
  request.operation = static_cast<Request::Operation>(operation);
  return reader.is_complete();
}

bool decode(const std::string& message, Reply& reply) {
  MessageReader reader{message};
  reply = {.error = reader.text()};
  while (reader.good && !reader.rest.empty()) {
    std::string key = reader.text();
    reply.values.insert_or_assign(std::move(key), reader.text());
  }
  return reader.is_complete();
}

}  // namespace tutti::distributed::rendezvous
