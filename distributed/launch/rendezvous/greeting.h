// The greeting: the first message of a connection to rank 0, and rank 0's answer to it. Rank 0
// serves only those whose greeting fits. Whatever keeps strangers and other runs out belongs here.
//
// A greeting is the eight bytes of `greeting_magic` and a framed message (rank, world size, run
// id). An answer is the eight bytes of `answer_magic` and a framed text: why rank 0 refuses, empty
// where it does not.
#pragma once

#include "messages.h"

#include <chrono>

namespace tutti::distributed::rendezvous {

constexpr std::string_view greeting_magic = "tutti/1\n";
/// The two magics differ, so that an echo is not taken for an answer.
constexpr std::string_view answer_magic = "rank 0/1";
/// How long each side waits for the other's part of the greeting.
constexpr std::chrono::seconds greeting_timeout{5};

/// What a process says about itself.
struct Greeting {
  int rank = -1, size = 0;
  std::string run_id = {};
};

/// Returns the greeting of `member` as bytes.
std::string encode_greeting(const Member& member);

/// Takes a greeting off the front of `input`, if all of it has arrived.
Taken take_greeting(std::string& input, Greeting& greeting);

/// Returns why rank 0, which is `server`, refuses the greeting; empty where it accepts.
/// `present[r]` says whether rank r is connected already.
std::string refusal_of(const Greeting& greeting, const Member& server,
                       const std::vector<bool>& present);

/// Returns rank 0's answer as bytes.
std::string encode_answer(const std::string& refusal);

}  // namespace tutti::distributed::rendezvous
