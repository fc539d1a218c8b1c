#include "messages.h"

#include <cstring>

namespace tutti::distributed::rendezvous {

void write_number(std::string& message, std::uint32_t number) {
  message.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void write_text(std::string& message, const std::string& text) {
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

std::string framed(const std::string& message) {
  std::string frame;
  write_text(frame, message);
  return frame;
}

Taken take_message(std::string& input, std::string& message) {
  std::uint32_t size = 0;
  if (input.size() < sizeof(size)) return Taken::incomplete;
  std::memcpy(&size, input.data(), sizeof(size));
  if (size > max_request_bytes) return Taken::malformed;
  if (input.size() - sizeof(size) < size) return Taken::incomplete;
  message = input.substr(sizeof(size), size);
  input.erase(0, sizeof(size) + size);
  return Taken::complete;
}

std::string encode(const Request& request) {
  std::string message;
  write_number(message, static_cast<std::uint32_t>(request.operation));
  write_text(message, request.key);
  write_text(message, request.value);
  return message;
}

std::string encode(const Values& reply) {
  std::string message;
  for (const auto& [key, value] : reply) {
    write_text(message, key);
    write_text(message, value);
  }
  return message;
}

bool decode(const std::string& message, Request& request) {
  MessageReader reader{message};
  request.operation = static_cast<Request::Operation>(reader.number());
  request.key = reader.text();
  request.value = reader.text();
  return reader.good;
}

Values decode_reply(const std::string& message) {
  Values values;
  for (MessageReader reader{message}; !reader.rest.empty() && reader.good;) {
    std::string key = reader.text();
    values.emplace(std::move(key), reader.text());
  }
  return values;
}

}  // namespace tutti::distributed::rendezvous
