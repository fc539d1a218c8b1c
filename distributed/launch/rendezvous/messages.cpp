#include "messages.h"

#include <cstring>

namespace tutti::distributed::rendezvous {

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

ReadResult take_message(std::string& input, std::size_t max_bytes, std::string& message) {
  MessageReader reader{input};
  const std::uint32_t size = reader.number();
  if (reader.good && size > max_bytes) return ReadResult::malformed;
  if (!reader.good || reader.rest.size() < size) return ReadResult::incomplete;
  message = reader.rest.substr(0, size);
  input.erase(0, sizeof(size) + size);
  return ReadResult::complete;
}

std::string encode(const Hello& hello) {
  std::string message;
  write_number(message, hello.rank);
  write_number(message, hello.size);
  return message;
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

bool decode(const std::string& message, Hello& hello) {
  MessageReader reader{message};
  hello.rank = reader.number();
  hello.size = reader.number();
  return reader.is_complete();
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
