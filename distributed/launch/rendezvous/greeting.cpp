#include "greeting.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::distributed::rendezvous {

std::string encode_greeting(const Member& member) {
  std::string message;
  write_number(message, static_cast<std::uint32_t>(member.rank));
  write_number(message, static_cast<std::uint32_t>(member.size));
  write_text(message, member.run_id);
  return std::string(greeting_magic) + framed(message);
}

Taken take_greeting(std::string& input, Greeting& greeting) {
  // A stranger is found out by its first wrong byte, not only by the eighth.
  const std::size_t seen = std::min(input.size(), greeting_magic.size());
  if (input.compare(0, seen, greeting_magic.substr(0, seen)) != 0) return Taken::malformed;
  if (seen < greeting_magic.size()) return Taken::incomplete;
  std::string rest = input.substr(greeting_magic.size()), message;
  if (const Taken taken = take_message(rest, message); taken != Taken::complete) return taken;
  input = std::move(rest);
  MessageReader reader{message};
  greeting.rank = static_cast<int>(reader.number());
  greeting.size = static_cast<int>(reader.number());
  greeting.run_id = reader.text();
  return reader.good ? Taken::complete : Taken::malformed;
}

std::string refusal_of(const Greeting& greeting, const Member& server,
                       const std::vector<bool>& present) {
  if (greeting.run_id != server.run_id)
    return fmt::format("rank 0 there belongs to run '{}', this process to run '{}'", server.run_id,
                       greeting.run_id);
  if (greeting.size != server.size)
    return fmt::format("rank 0 was started for {} ranks, this one for {}", server.size,
                       greeting.size);
  if (greeting.rank < 1 || greeting.rank >= greeting.size ||
      present[static_cast<std::size_t>(greeting.rank)])
    return fmt::format("another process has already come as rank {}", greeting.rank);
  return {};
}

std::string encode_answer(const std::string& refusal) {
  return std::string(answer_magic) + framed(refusal);
}

}  // namespace tutti::distributed::rendezvous
