// Fuzzes what the two sides of a TCP store do with bytes that come over a connection, and what
// ranks do with values that they read from a store. The first byte of the input chooses the reader,
// the rest is what it reads. Where a reader comes after the greeting or behind a message
// authentication code, the input is signed first: the fuzzer could not guess a code.
#include <tutti/core/error.h>
#include <tutti/distributed/backends/nccl/report.h>
#include <tutti/distributed/launch/rendezvous/greeting.h>

#include <cstdlib>

namespace {

using namespace tutti::distributed;
using namespace tutti::distributed::rendezvous;
using Sender = AuthenticatedStream::Sender;

const std::string secret = "a secret that the fuzzer knows", run_id = "run", nonce(nonce_size, 'n');

void expect(bool holds) {
  if (!holds) std::abort();
}

// Rank 0 reads a greeting, which arrives in two pieces.
void greet_server(const std::string& bytes) {
  ServerGreeting greeting(secret, run_id, nonce);
  const std::size_t half = bytes.size() / 2;
  std::string input = bytes.substr(0, half), output;
  if (greeting.advance(input, output) == ServerGreeting::State::waiting) {
    input += bytes.substr(half);
    greeting.advance(input, output);
  }
  expect(output.find(secret) == std::string::npos && output.find(run_id) == std::string::npos);
}

// Rank 0 reads a claim that is proved, and decides about it.
void decide(const std::string& bytes) {
  MessageReader reader{bytes};
  ClientGreeting client({.rank = static_cast<int>(reader.number()),
                         .size = static_cast<int>(reader.number()),
                         .run_id = run_id},
                        secret, nonce);
  ServerGreeting server(secret, run_id, nonce);
  std::string input = client.hello(), output;
  server.advance(input, output);
  input = client.prove(output);
  expect(server.advance(input, output) == ServerGreeting::State::proved);
  const Member rank_0{.rank = 0, .size = 3};
  const std::string refusal = refusal_of(server.transcript(), rank_0, {true, false, true});
  expect(refusal.empty() == (server.transcript().rank == 1 && server.transcript().size == 3));
}

// Another rank reads rank 0's answer and proof.
void greet_client(const std::string& bytes) {
  ClientGreeting greeting({.rank = 1, .size = 2, .run_id = run_id}, secret, nonce);
  const std::string claim = greeting.prove(bytes.substr(0, ClientGreeting::answer_size));
  expect(claim.find(secret) == std::string::npos);
  if (!claim.empty()) expect(!greeting.is_proof(bytes.substr(ClientGreeting::answer_size)));
}

// A frame of an authenticated connection, as it comes and with a right code.
void take_frame(const std::string& bytes) {
  AuthenticatedStream stranger(nonce, Sender::client), receiver(nonce, Sender::client),
      sender(nonce, Sender::client);
  std::string input = bytes, message;
  expect(stranger.take(input, 1000, message) != ReadResult::complete);
  input = sender.frame(bytes) + bytes;
  expect(receiver.take(input, bytes.size(), message) == ReadResult::complete);
  expect(message == bytes && input == bytes);
}

// Rank 0 carries out requests that follow each other.
void serve(const std::string& bytes) {
  Table table;
  std::string rest = bytes;
  for (int i = 0; i < 100 && !rest.empty(); ++i) {
    const auto size = static_cast<unsigned char>(rest[0]);  // of the next request
    Request request;
    if (decode(rest.substr(1, size), request)) {
      Reply reply, copy;
      try {
        check_size(request);
        reply.values = table.apply(request);
      } catch (const tutti::Error& error) {
        reply.error = error.what();
      }
      expect(decode(encode(reply), copy));
      expect(copy.values == reply.values && copy.error == reply.error);
    }
    rest.erase(0, std::size_t{1} + size);
  }
}

void read_reply(const std::string& bytes) {
  Reply reply;
  decode(bytes, reply);
}

// A rank reads what other ranks have written.
void read_values(const std::string& bytes) {
  decode_failure(bytes);
  try {
    for (const auto& [key, report] : nccl::decode_reports(bytes, 1))
      for (const Fingerprint& fingerprint : report.fingerprints) to_string(fingerprint);
  } catch (const tutti::DistributedError&) {}
  const auto table = std::make_shared<SharedTable>();
  const auto store = in_memory(table, {0, 2, {}, std::chrono::milliseconds(0)});
  store->set("names/1", bytes.substr(0, max_value_bytes));
  try {
    store->gather("names", "");
  } catch (const tutti::DistributedError&) {}
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size == 0) return 0;
  constexpr void (*readers[])(const std::string&) = {
      greet_server, decide, greet_client, take_frame, serve, read_reply, read_values};
  readers[data[0] % std::size(readers)](
      std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
