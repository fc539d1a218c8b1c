// The messages of a TCP store: a rank's hello, requests, replies, and the Channel that carries
// them. Each is a list of texts. It travels as its size and its texts, each behind its own size; a
// size is 32 bits in the byte order of the host. TLS encrypts all of it (tls.h).
#pragma once

#include "../../../core/file_descriptor.h"
#include "store.h"
#include "tls.h"

#include <string>
#include <vector>

namespace tutti::distributed::rendezvous {

using Message = std::vector<std::string>;

constexpr std::size_t max_request_bytes = max_key_bytes + max_value_bytes + 16;
/// A reply may list the whole table.
constexpr std::size_t max_reply_bytes = max_table_bytes + 16;

/// Returns a message as it travels.
std::string framed(const Message& message);
/// Returns the message that framed() has made a text of; an empty one where it has not.
Message unframed(std::string text);

enum class ReadResult { complete, incomplete, malformed };

/// Takes the next message off the front of `input`, if all of it has arrived. It is malformed where
/// it claims more than `max_bytes`, or its texts do not fill it.
ReadResult take_message(std::string& input, std::size_t max_bytes, Message& message);

/// One end of a connection. It never waits, and sets no limits.
class Channel {
 public:
  /// What receive() has found: nothing has come, something has, the other end has closed the
  /// connection, it has another key, or it has broken the protocol.
  enum class Arrival { nothing, some, closed, refused, broken };

  Channel(FileDescriptor socket, const TlsKey& key, TlsStream::Side side);

  int fd() const { return socket_.get(); }
  /// Returns whether the other end has proved that it knows the key.
  bool is_proved() const { return tls_.is_proved(); }
  /// Keeps a message until send() sends it. The other end has proved itself.
  void put(const Message& message) { tls_.put(framed(message), output_); }
  /// Sends what the other end takes now. Returns false where the connection is broken.
  bool send();
  /// How many bytes wait to be sent.
  std::size_t pending() const { return output_.size() - sent_; }
  /// Receives up to `max_bytes` of what has come.
  Arrival receive(std::size_t max_bytes);
  /// How many bytes have been received.
  std::size_t received() const { return received_; }
  /// Takes the next message, see take_message().
  ReadResult take(std::size_t max_bytes, Message& message) {
    return take_message(input_, max_bytes, message);
  }
  /// How many bytes of messages wait to be taken.
  std::size_t untaken() const { return input_.size(); }

 private:
  FileDescriptor socket_;
  TlsStream tls_;
  std::string input_, output_;  // received and decrypted; encrypted and to be sent
  std::size_t sent_ = 0;        // how many bytes of output_ have been sent
  std::size_t received_ = 0;
};

/// How long each side waits for the other's part of the greeting: TLS, hello and rank 0's answer.
constexpr std::chrono::seconds greeting_timeout{5};

/// What a rank first tells rank 0. Rank 0's reply has the run id, or the error why it refuses.
struct Hello {
  int rank = 0, size = 0;
};

/// What rank 0 answers to a request: the values, or why it could not be carried out.
struct Reply {
  Values values = {};
  std::string error = {};
};

Message encode(const Hello& hello);
Message encode(const Request& request);
Message encode(const Reply& reply);
/// Return false where the message is no hello, no request or no reply.
bool decode(const Message& message, Hello& hello);
bool decode(const Message& message, Request& request);
bool decode(const Message& message, Reply& reply);

}  // namespace tutti::distributed::rendezvous
