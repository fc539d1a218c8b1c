// TLS 1.3 under a key that both ends of a connection share, made of the secret and the run id.
// Whatever keeps strangers and other runs out of a TCP store is here; sockets are not. OpenSSL does
// the cryptography: both ends prove that they know the key, and all that follows is encrypted.
#pragma once

#include <memory>
#include <string>
#include <string_view>

struct ssl_ctx_st;
struct ssl_st;

namespace tutti::distributed::rendezvous {

/// The key of a run, which the connections of this process share. It must outlive them.
class TlsKey {
 public:
  TlsKey(const std::string& secret, const std::string& run_id);
  TlsKey(const TlsKey&) = delete;
  TlsKey& operator=(const TlsKey&) = delete;

 private:
  friend class TlsStream;
  std::string bytes_;
  std::unique_ptr<ssl_ctx_st, void (*)(ssl_ctx_st*)> context_;
};

/// One end of a connection, as bytes: what was received goes in, what must be sent comes out.
class TlsStream {
 public:
  enum class Side { client, server };
  /// `refused` is what a client sees where the server has another key. A connection that is refused
  /// or broken must be closed; it is broken where the other end breaks the protocol, does not prove
  /// to know the key, or sends a message that was altered, repeated or left out on its way.
  enum class State { open, refused, broken };

  TlsStream(const TlsKey& key, Side side);

  /// Takes bytes from the other end; a client first takes none. Appends what they say to `plain`
  /// and what is to be sent back to `output`.
  State take(std::string_view received, std::string& plain, std::string& output);
  /// Encrypts `plain` for the other end, which must have proved itself. Appends it to `output`.
  void put(std::string_view plain, std::string& output);
  /// Returns whether the other end has proved that it knows the key.
  bool is_proved() const;

 private:
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
};

}  // namespace tutti::distributed::rendezvous
