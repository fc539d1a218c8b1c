// The greeting: the first messages of a connection to rank 0, in which both sides prove that they
// know the secret and the run id without sending either. Whatever keeps strangers and other runs
// out belongs here; sockets do not.
//
//   client: greeting_magic, a random number
//   server: answer_magic, a random number
//   client: rank, world size, proof of the client
//   server: '+', proof of the server, and an authenticated message that says why rank 0 refuses
//           this rank, empty where it does not; or '-' where the client has not proved itself
//
// A proof is an HMAC-SHA256 under the secret over the side's name and the transcript: both random
// numbers, the rank, the world size and the run id. The key of the messages that follow is another
// HMAC of the transcript. So nothing of an earlier connection proves anything in this one, and
// whoever only listens or asks learns neither the secret nor the run id.
#pragma once

#include "messages.h"

#include <chrono>

namespace tutti::distributed::rendezvous {

constexpr std::string_view greeting_magic = "tutti/2\n";
/// The two magics differ, so that an echo is not taken for an answer.
constexpr std::string_view answer_magic = "rank 0/2";
constexpr std::size_t nonce_size = 32;
/// How long each side waits for the other's part of the greeting.
constexpr std::chrono::seconds greeting_timeout{5};

constexpr char accepted_mark = '+', refused_mark = '-';

/// A fresh random number for one greeting.
std::string random_nonce();

/// What a client says about itself, and both sides' random numbers.
struct Transcript {
  std::uint32_t rank = 0, size = 0;
  std::string client_nonce = {}, server_nonce = {};
};

/// What follows from a transcript for those who know the secret.
struct GreetingKeys {
  std::string client_proof, server_proof, session_key;
};
GreetingKeys derive_keys(const std::string& secret, const std::string& run_id,
                         const Transcript& transcript);

/// The greeting of rank 0's side, without its socket.
class ServerGreeting {
 public:
  enum class State { waiting, malformed, refused, proved };

  /// `nonce` comes from random_nonce(), except in tests.
  ServerGreeting(std::string secret, std::string run_id, std::string nonce = random_nonce());

  /// Takes the client's messages off the front of `input` and appends the answers to `output`. Once
  /// the client has proved itself, the caller sends its decision.
  State advance(std::string& input, std::string& output);
  const Transcript& transcript() const { return transcript_; }
  /// The key of the messages that follow, once the client has proved itself.
  const std::string& session_key() const { return keys_.session_key; }

 private:
  bool take_nonce(std::string& input, std::string& output);
  void take_proof(std::string& input, std::string& output);

  std::string secret_, run_id_;
  Transcript transcript_;
  GreetingKeys keys_;
  State state_ = State::waiting;
};

/// The greeting of another rank's side, without its socket. It sends hello(), passes the server's
/// `answer_size` bytes to prove() and sends the result, and passes the server's proof to
/// is_proof().
class ClientGreeting {
 public:
  ClientGreeting(const Member& member, std::string secret, std::string nonce = random_nonce());

  std::string hello() const;
  static constexpr std::size_t answer_size = answer_magic.size() + nonce_size;
  /// Returns this side's proof; empty where the answer is not that of a rank 0.
  std::string prove(const std::string& answer);
  /// Returns whether these bytes, which follow accepted_mark, prove that the server knows the
  /// secret.
  bool is_proof(const std::string& bytes) const;
  const std::string& session_key() const { return keys_.session_key; }

 private:
  std::string secret_, run_id_;
  Transcript transcript_;
  GreetingKeys keys_;
};

/// Returns why rank 0, which is `server`, refuses a rank that has proved itself; empty where it
/// accepts. `present[r]` says whether rank r is connected already.
std::string refusal_of(const Transcript& client, const Member& server,
                       const std::vector<bool>& present);

}  // namespace tutti::distributed::rendezvous
