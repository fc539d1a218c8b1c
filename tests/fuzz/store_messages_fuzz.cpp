// Fuzzes what the two sides of a TCP store do with bytes that come over a connection, and what
// ranks do with values that they read from a store. The first byte of the input chooses the reader,
// the rest is what it reads. What comes behind TLS is read as it is after decryption: the fuzzer
// could not guess a key.
#include <tutti/core/error.h>
#include <tutti/distributed/backends/nccl/report.h>
#include <tutti/distributed/launch/rendezvous/messages.h>
#include <tutti/distributed/launch/rendezvous/tls.h>

#include <cstdlib>

namespace {

using namespace tutti::distributed;
using namespace tutti::distributed::rendezvous;
using Side = TlsStream::Side;

const std::string secret = "a secret that the fuzzer knows", run_id = "a run of the fuzzer";

void expect(bool holds) {
  if (!holds) std::abort();
}

// One side reads a handshake, which arrives in two pieces.
void shake_hands(Side side, const std::string& bytes) {
  static const TlsKey key(secret, run_id);
  TlsStream tls(key, side);
  std::string plain, output;
  tls.take({}, plain, output);
  const std::size_t half = bytes.size() / 2;
  if (tls.take(bytes.substr(0, half), plain, output) == TlsStream::State::open)
    tls.take(bytes.substr(half), plain, output);
  expect(!tls.is_proved() && plain.empty());
  expect(output.find(secret) == std::string::npos && output.find(run_id) == std::string::npos);
}

void greet_server(const std::string& bytes) { shake_hands(Side::server, bytes); }
void greet_client(const std::string& bytes) { shake_hands(Side::client, bytes); }

// Takes the messages off the front of `bytes`.
std::vector<Message> messages_in(std::string bytes) {
  std::vector<Message> all;
  for (Message message; take_message(bytes, 1000, message) == ReadResult::complete;)
    all.push_back(message);
  return all;
}

void read_hello(const std::string& bytes) {
  Hello hello, copy;
  for (const Message& message : messages_in(bytes))
    if (decode(message, hello))
      expect(decode(encode(hello), copy) && copy.rank == hello.rank && copy.size == hello.size);
}

void take_frame(const std::string& bytes) {
  for (const Message& message : messages_in(bytes)) expect(unframed(framed(message)) == message);
  Message message;
  std::string input = framed({bytes, bytes}) + bytes;
  expect(take_message(input, 2 * bytes.size() + 8, message) == ReadResult::complete);
  expect(message == Message{bytes, bytes} && input == bytes);
}

// Rank 0 carries out requests that follow each other.
void serve(const std::string& bytes) {
  Table table;
  for (const Message& message : messages_in(bytes)) {
    Request request;
    if (decode(message, request)) {
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
  }
}

void read_reply(const std::string& bytes) {
  Reply reply;
  for (const Message& message : messages_in(bytes)) decode(message, reply);
}

// A rank reads what other ranks have written.
void read_values(const std::string& bytes) {
  decode_failure(bytes);
  try {
    for (const auto& [key, report] : nccl::decode_state(bytes, 1).second)
      for (const Fingerprint& fingerprint : report.fingerprints) to_string(fingerprint);
    nccl::decode_seat(bytes, 1);
  } catch (const tutti::DistributedError&) {}
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size == 0) return 0;
  constexpr void (*readers[])(const std::string&) = {
      greet_server, read_hello, greet_client, take_frame, serve, read_reply, read_values};
  readers[data[0] % std::size(readers)](
      std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
