#include "messages.h"

#include "../../../core/parse_number.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace tutti::distributed::rendezvous {
namespace {

using Size = std::uint32_t;

// More memory than that is given back when all has been sent.
constexpr std::size_t kept_bytes = std::size_t{1} << 18;

// Takes a size off the front of `bytes`; nothing where it is not there.
std::optional<Size> take_size(std::string_view& bytes) {
  Size size = 0;
  if (bytes.size() < sizeof(size)) return {};
  std::memcpy(&size, bytes.data(), sizeof(size));
  bytes.remove_prefix(sizeof(size));
  return size;
}

void add_size(std::string& bytes, std::size_t size) {
  const auto number = static_cast<Size>(size);
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

}  // namespace

std::string framed(const Message& message) {
  std::size_t bytes = 0;
  for (const std::string& text : message) bytes += sizeof(Size) + text.size();
  std::string frame;  // of one allocation, because a reply may list the whole table
  frame.reserve(sizeof(Size) + bytes);
  add_size(frame, bytes);
  for (const std::string& text : message) {
    add_size(frame, text.size());
    frame += text;
  }
  return frame;
}

ReadResult take_message(std::string& input, std::size_t max_bytes, Message& message) {
  std::string_view rest = input;
  const std::optional<Size> size = take_size(rest);
  if (size && *size > max_bytes) return ReadResult::malformed;
  if (!size || rest.size() < *size) return ReadResult::incomplete;
  rest = rest.substr(0, *size);
  message.clear();
  while (!rest.empty()) {
    const std::optional<Size> length = take_size(rest);
    if (!length || rest.size() < *length) return ReadResult::malformed;
    message.emplace_back(rest.substr(0, *length));
    rest.remove_prefix(*length);
  }
  input.erase(0, sizeof(Size) + *size);
  return ReadResult::complete;
}

Message unframed(std::string text) {
  Message message;
  const bool is_whole = take_message(text, text.size(), message) == ReadResult::complete;
  return is_whole && text.empty() ? message : Message();
}

Channel::Channel(FileDescriptor socket, const TlsKey& key, TlsStream::Side side)
    : socket_(std::move(socket)), tls_(key, side) {
  if (side == TlsStream::Side::client) tls_.take({}, input_, output_);
}

bool Channel::send() {
  while (pending() > 0) {
    const ssize_t n = ::send(fd(), output_.data() + sent_, pending(), MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    sent_ += static_cast<std::size_t>(n);
    if (sent_ < pending()) continue;  // so that a large message is moved a few times only
    output_.erase(0, sent_);
    sent_ = 0;
  }
  if (output_.capacity() > kept_bytes) std::string().swap(output_);
  return true;
}

Channel::Arrival Channel::receive(std::size_t max_bytes) {
  char buffer[1 << 14];
  const ssize_t n = recv(fd(), buffer, std::min(sizeof(buffer), max_bytes), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Arrival::nothing;
  if (n <= 0) return Arrival::closed;
  received_ += static_cast<std::size_t>(n);
  switch (tls_.take({buffer, static_cast<std::size_t>(n)}, input_, output_)) {
    case TlsStream::State::open: return Arrival::some;
    case TlsStream::State::refused: return Arrival::refused;
    case TlsStream::State::broken: break;
  }
  return Arrival::broken;
}

Message encode(const Hello& hello) {
  return {std::to_string(hello.rank), std::to_string(hello.size)};
}

Message encode(const Request& request) {
  return {{static_cast<char>(request.operation)}, request.key, request.value};
}

Message encode(const Reply& reply) {
  Message message = {reply.error};
  for (const auto& [key, value] : reply.values) {
    message.push_back(key);
    message.push_back(value);
  }
  return message;
}

bool decode(const Message& message, Hello& hello) {
  if (message.size() != 2) return false;
  const auto rank = parse_number(message[0], 0), size = parse_number(message[1], 1);
  hello = {rank.value_or(0), size.value_or(0)};
  return rank && size;
}

bool decode(const Message& message, Request& request) {
  if (message.size() != 3 || message[0].size() != 1) return false;
  request = {static_cast<Request::Operation>(message[0][0]), message[1], message[2]};
  return std::string_view(Request::operations).find(message[0][0]) != std::string_view::npos;
}

bool decode(const Message& message, Reply& reply) {
  if (message.size() % 2 != 1) return false;
  reply = {.error = message[0]};
  for (std::size_t i = 1; i < message.size(); i += 2) reply.values[message[i]] = message[i + 1];
  return true;
}

}  // namespace tutti::distributed::rendezvous
