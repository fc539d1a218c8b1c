#include "tls.h"

#include "../../../core/error.h"
#include "secret.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstring>

namespace tutti::distributed::rendezvous {
namespace {

// The name of the key, which is sent in the clear; the run id is a part of the key instead.
constexpr char identity[] = "tutti";

[[noreturn]] void throw_openssl_error(const char* what) {
  fail<DistributedError>("rendezvous: OpenSSL cannot {}: {}", what,
                         ERR_error_string(ERR_get_error(), nullptr));
}

unsigned copy_key(SSL* ssl, unsigned char* out, unsigned room) {
  const auto& key = *static_cast<const std::string*>(SSL_get_app_data(ssl));
  if (key.size() > room) return 0;
  std::memcpy(out, key.data(), key.size());
  return static_cast<unsigned>(key.size());
}

unsigned choose_key(SSL* ssl, const char* /*hint*/, char* name, unsigned room, unsigned char* out,
                    unsigned key_room) {
  if (sizeof(identity) > room) return 0;
  std::memcpy(name, identity, sizeof(identity));
  return copy_key(ssl, out, key_room);
}

unsigned find_key(SSL* ssl, const char* name, unsigned char* out, unsigned room) {
  return std::strcmp(name, identity) == 0 ? copy_key(ssl, out, room) : 0;
}

// Returns whether the other end has said that it does not know the key.
bool is_refusal() {
  const int reason = ERR_GET_REASON(ERR_peek_error());
  return reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER || reason == SSL_R_TLSV1_ALERT_DECRYPT_ERROR;
}

// Moves what OpenSSL wants to send to `output`.
void take_output(SSL* ssl, std::string& output) {
  char buffer[4096];
  for (int n = 0; (n = BIO_read(SSL_get_wbio(ssl), buffer, sizeof(buffer))) > 0;)
    output.append(buffer, static_cast<std::size_t>(n));
}

}  // namespace

TlsKey::TlsKey(const std::string& secret, const std::string& run_id)
    : bytes_(hmac_sha256(secret, "tutti rendezvous 4 " + run_id)),
      context_(SSL_CTX_new(TLS_method()), SSL_CTX_free) {
  SSL_CTX* context = context_.get();
  // The keys of these callbacks go with SHA-256 only.
  if (!context || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set_num_tickets(context, 0) != 1)
    throw_openssl_error("prepare TLS 1.3");
  SSL_CTX_set_psk_client_callback(context, choose_key);
  SSL_CTX_set_psk_server_callback(context, find_key);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
}

TlsStream::TlsStream(const TlsKey& key, Side side) : ssl_(SSL_new(key.context_.get()), SSL_free) {
  BIO *input = BIO_new(BIO_s_mem()), *output = BIO_new(BIO_s_mem());
  if (!ssl_ || !input || !output) {
    BIO_free(input), BIO_free(output);
    throw_openssl_error("begin a connection");
  }
  SSL_set_bio(ssl_.get(), input, output);  // owns both
  SSL_set_app_data(ssl_.get(), const_cast<std::string*>(&key.bytes_));
  if (side == Side::server) {
    SSL_set_accept_state(ssl_.get());
  } else {
    SSL_set_connect_state(ssl_.get());
    // No certificate is trusted, so a server must know the key.
    SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);
  }
}

TlsStream::State TlsStream::take(std::string_view received, std::string& plain,
                                 std::string& output) {
  ERR_clear_error();
  const auto size = static_cast<int>(received.size());
  if (size > 0 && BIO_write(SSL_get_rbio(ssl_.get()), received.data(), size) != size)
    throw_openssl_error("take what was received");
  char buffer[4096];
  int n = 0;
  while ((n = SSL_read(ssl_.get(), buffer, sizeof(buffer))) > 0)
    plain.append(buffer, static_cast<std::size_t>(n));
  take_output(ssl_.get(), output);
  if (SSL_get_error(ssl_.get(), n) == SSL_ERROR_WANT_READ) return State::open;
  return is_refusal() ? State::refused : State::broken;
}

void TlsStream::put(std::string_view plain, std::string& output) {
  ERR_clear_error();
  for (std::size_t at = 0; at < plain.size();) {
    const std::size_t part = std::min<std::size_t>(plain.size() - at, 1 << 20);
    const int n = SSL_write(ssl_.get(), plain.data() + at, static_cast<int>(part));
    if (n <= 0) throw_openssl_error("encrypt a message");
    at += static_cast<std::size_t>(n);
    take_output(ssl_.get(), output);
  }
}

bool TlsStream::is_proved() const { return SSL_is_init_finished(ssl_.get()) == 1; }

}  // namespace tutti::distributed::rendezvous
