#include "greeting.h"

#include "crypto.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::distributed::rendezvous {
namespace {

// The client's second message: rank, world size and proof.
constexpr std::size_t claim_size = 2 * sizeof(std::uint32_t) + hmac_size;

}  // namespace

std::string random_nonce() { return random_bytes(nonce_size); }

GreetingKeys derive_keys(const std::string& secret, const std::string& run_id,
                         const Transcript& transcript) {
  std::string text(greeting_magic);
  write_number(text, transcript.rank);
  write_number(text, transcript.size);
  for (const std::string& part : {transcript.client_nonce, transcript.server_nonce, run_id})
    write_text(text, part);
  return {.client_proof = hmac_sha256(secret, "client " + text),
          .server_proof = hmac_sha256(secret, "server " + text),
          .session_key = hmac_sha256(secret, "session " + text)};
}

ServerGreeting::ServerGreeting(std::string secret, std::string run_id, std::string nonce)
    : secret_(std::move(secret)), run_id_(std::move(run_id)) {
  transcript_.server_nonce = std::move(nonce);
}

ServerGreeting::State ServerGreeting::advance(std::string& input, std::string& output) {
  if (state_ == State::waiting && transcript_.client_nonce.empty() && !take_nonce(input, output))
    return state_;
  if (state_ == State::waiting) take_proof(input, output);
  return state_;
}

bool ServerGreeting::take_nonce(std::string& input, std::string& output) {
  // A stranger is found out by its first wrong byte, not only by the eighth.
  const std::size_t seen = std::min(input.size(), greeting_magic.size());
  if (input.compare(0, seen, greeting_magic.substr(0, seen)) != 0) state_ = State::malformed;
  if (state_ != State::waiting || input.size() < greeting_magic.size() + nonce_size) return false;
  transcript_.client_nonce = input.substr(greeting_magic.size(), nonce_size);
  input.erase(0, greeting_magic.size() + nonce_size);
  output += std::string(answer_magic) + transcript_.server_nonce;
  return true;
}

void ServerGreeting::take_proof(std::string& input, std::string& output) {
  // Nobody who follows the protocol sends more before the verdict.
  if (input.size() > claim_size) state_ = State::malformed;
  if (input.size() != claim_size) return;
  MessageReader reader{input};
  transcript_.rank = reader.number();
  transcript_.size = reader.number();
  keys_ = derive_keys(secret_, run_id_, transcript_);
  const bool proved = is_equal_in_constant_time(reader.rest, keys_.client_proof);
  input.clear();
  output += proved ? accepted_mark + keys_.server_proof : std::string(1, refused_mark);
  state_ = proved ? State::proved : State::refused;
}

ClientGreeting::ClientGreeting(const Member& member, std::string secret, std::string nonce)
    : secret_(std::move(secret)), run_id_(member.run_id) {
  transcript_ = {.rank = static_cast<std::uint32_t>(member.rank),
                 .size = static_cast<std::uint32_t>(member.size),
                 .client_nonce = std::move(nonce)};
}

std::string ClientGreeting::hello() const {
  return std::string(greeting_magic) + transcript_.client_nonce;
}

std::string ClientGreeting::prove(const std::string& answer) {
  if (answer.size() != answer_size || !answer.starts_with(answer_magic)) return {};
  transcript_.server_nonce = answer.substr(answer_magic.size());
  keys_ = derive_keys(secret_, run_id_, transcript_);
  std::string claim;
  write_number(claim, transcript_.rank);
  write_number(claim, transcript_.size);
  return claim + keys_.client_proof;
}

bool ClientGreeting::is_proof(const std::string& bytes) const {
  return is_equal_in_constant_time(bytes, keys_.server_proof);
}

std::string refusal_of(const Transcript& client, const Member& server,
                       const std::vector<bool>& present) {
  if (client.size != static_cast<std::uint32_t>(server.size))
    return fmt::format("rank 0 was started for {} ranks, this one for {}", server.size,
                       client.size);
  if (client.rank < 1 || client.rank >= client.size)
    return fmt::format("rank {} is none of the ranks 1 to {}", client.rank, client.size - 1);
  if (present[client.rank])
    return fmt::format("another process has already come as rank {}", client.rank);
  return {};
}

}  // namespace tutti::distributed::rendezvous
