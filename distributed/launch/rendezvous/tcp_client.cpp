// The TCP store on every rank but rank 0: one connection to rank 0, over which it sends requests
// and waits for the replies. It connects, and connects again, until rank 0 proves that it belongs
// to this run and accepts this rank, or the deadline comes.
#include "messages.h"
#include "secret.h"
#include "socket.h"
#include "tls.h"

#include <fmt/ranges.h>

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>

namespace tutti::distributed::rendezvous {
namespace {

using namespace std::chrono_literals;

// How long a request may take: a rank 0 that was stopped does not answer, and does not hang up.
constexpr std::chrono::milliseconds request_timeout = 30s;

class Client : public Store {
 public:
  // Tries the hosts in turn. With several of them, one that leads to another run is no reason to
  // give up.
  Client(const std::vector<std::string>& hosts, int port, const Member& member)
      : Store(member), port_(port) {
    const auto deadline = deadline_after(member.timeout);
    std::string why;
    for (;;) {
      for (const std::string& host : hosts) {
        host_ = host;
        std::string why_now = "no address";
        if (reach_host(deadline, hosts.size() == 1, why_now)) return;
        // An attempt that the deadline cuts short says less than those before.
        if (why.empty() || Clock::now() < deadline) why = why_now;
      }
      if (Clock::now() >= deadline) break;
      std::this_thread::sleep_for(50ms);
    }
    host_ = fmt::format("{}", fmt::join(hosts, ", "));
    throw TimeoutError(
        fmt::format("rendezvous: rank {} could not reach rank 0 at {} within {}: {}; is rank 0 "
                    "started, and are the address and the port its own?",
                    member.rank, where(), distributed::to_string(member.timeout), why),
        {.rank = member.rank, .world_size = member.size, .operation = "rendezvous", .name = {}});
  }

  ~Client() override {
    if (is_forked()) return;  // the parent goes on using this connection
    try {
      request({Request::Operation::leave});
    } catch (const std::exception&) {  // rank 0 is gone already, or there is no memory
    }
  }

  std::string where() const override { return fmt::format("{}:{}", host_, port_); }

 private:
  Values carry_out(const Request& request) override {
    const std::lock_guard lock(mutex_);
    const auto deadline = deadline_after(std::min(request_timeout, member().timeout));
    const auto fail_connection = [this](const char* why) {
      socket_ = FileDescriptor();  // a late reply would be taken for that of the next request
      tutti::fail<DistributedError>("rendezvous at {}: {}", where(), why);
    };
    if (!socket_.is_open()) fail_connection("the connection to rank 0 has failed before");
    std::string message;
    Reply reply;
    if (!send_message(encode(request), deadline))
      fail_connection("rank 0 does not answer; its process has ended or hangs");
    const ReadResult taken = receive_message(message, deadline);
    if (taken == ReadResult::incomplete)
      fail_connection("rank 0 does not answer; its process has ended or hangs");
    if (taken == ReadResult::malformed || !decode(message, reply))
      fail_connection("a message of rank 0 was altered on its way or repeated");
    if (!reply.error.empty()) tutti::fail<DistributedError>("{} (at {})", reply.error, where());
    return std::move(reply.values);
  }

  // ---- connecting. Each function returns false, with the reason in `why`, where it fails.

  bool reach_host(Clock::time_point deadline, bool refusal_is_final, std::string& why) {
    const Addresses addresses = resolve(host_, port_, why);
    bool is_of_this_host = false;
    for (const addrinfo* each = addresses.get(); each; each = each->ai_next) {
      std::string secret = member().secret;
      if (secret.empty()) {
        if (!is_own_address(each->ai_addr, each->ai_addrlen)) continue;
        is_of_this_host = true;
        if (!read_secret_of_host(secret, why)) continue;
      }
      const auto soon = std::min(deadline, Clock::now() + greeting_timeout);
      if (!connect_to(*each, soon, why)) continue;
      const auto [outcome, text] = greet(secret, soon);
      if (outcome == Outcome::accepted) return true;
      why = text;
      // A rank 0 that was killed may have left its secret: then the new one writes its own.
      if (outcome == Outcome::refused && refusal_is_final && !is_replaced(secret))
        tutti::fail<DistributedError>("rendezvous at {}: rank {} was turned away: {}", where(),
                                      member().rank, text);
    }
    if (addresses && member().secret.empty() && !is_of_this_host)
      throw_missing_secret(fmt::format(
          "rendezvous at {}: rank 0 is on another host, and this run has no secret", where()));
    return false;
  }

  bool read_secret_of_host(std::string& secret, std::string& why) const {
    const std::string path = path_of_host_secret(member().run_id, host_, port_);
    const std::optional<std::string> found = read_host_secret(path);
    if (found) secret = *found;
    else
      why = fmt::format(
          "there is no {}, in which rank 0 leaves the secret of this run (run id '{}', "
          "address {})",
          path, member().run_id, where());
    return found.has_value();
  }

  bool is_replaced(const std::string& used) const {
    std::string now, why;
    return member().secret.empty() && (!read_secret_of_host(now, why) || now != used);
  }

  bool connect_to(const addrinfo& address, Clock::time_point deadline, std::string& why) {
    socket_ =
        FileDescriptor(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket_.is_open() || (connect(socket_.get(), address.ai_addr, address.ai_addrlen) != 0 &&
                               errno != EINPROGRESS)) {
      why = std::strerror(errno);
      return false;
    }
    if (!wait_until_ready(POLLOUT, deadline)) {
      why = "no answer";
      return false;
    }
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      why = std::strerror(error);
      return false;
    }
    set_connection_options(socket_.get());
    return true;
  }

  enum class Outcome { accepted, refused, failed };

  // Greets rank 0. Returns also why it did not end well.
  std::pair<Outcome, std::string> greet(const std::string& secret, Clock::time_point deadline) {
    const std::pair stranger(Outcome::failed, "what answers there is no rank 0 of tutti");
    tls_.reset();
    key_.emplace(secret, member().run_id);
    tls_.emplace(*key_, TlsStream::Side::client);
    input_.clear();
    std::string received, output;
    auto state = tls_->take({}, input_, output);
    for (bool is_silent = true; !tls_->is_proved(); is_silent = false) {
      if (!send_bytes(output, deadline) || !receive_bytes(received, deadline)) {
        if (!is_silent || Clock::now() < deadline) return stranger;
        return {Outcome::failed,
                "what listens there does not answer; its process hangs or is busy"};
      }
      output.clear();
      state = tls_->take(received, input_, output);
      if (state == TlsStream::State::refused)
        return {Outcome::refused,
                fmt::format("rank 0 there belongs to another run: its secret or its run id is not "
                            "that of this process (run id '{}')",
                            member().run_id)};
      // What other servers send first may be short, and then nothing more comes.
      if (state == TlsStream::State::broken) return stranger;
    }
    const Hello hello{static_cast<std::uint32_t>(member().rank),
                      static_cast<std::uint32_t>(member().size)};
    std::string refusal;
    if (!send_bytes(output, deadline) || !send_message(encode(hello), deadline) ||
        receive_message(refusal, deadline) != ReadResult::complete)
      return stranger;
    return {refusal.empty() ? Outcome::accepted : Outcome::refused, refusal};
  }

  // ---- sending and receiving. Each function returns false where the connection is broken, and at
  // the deadline.

  bool send_message(const std::string& message, Clock::time_point deadline) {
    std::string frame, output;
    write_text(frame, message);
    tls_->put(frame, output);
    return send_bytes(output, deadline);
  }

  // Returns `incomplete` where the rest does not come.
  ReadResult receive_message(std::string& message, Clock::time_point deadline) {
    for (std::string received, output;;) {
      const ReadResult taken = take_message(input_, max_reply_bytes, message);
      if (taken != ReadResult::incomplete) return taken;
      if (!receive_bytes(received, deadline)) return ReadResult::incomplete;
      if (tls_->take(received, input_, output) != TlsStream::State::open)
        return ReadResult::malformed;
    }
  }

  // Receives what has arrived, at least one byte.
  bool receive_bytes(std::string& bytes, Clock::time_point deadline) {
    bytes.resize(1 << 16);
    while (socket_.is_open() && wait_until_ready(POLLIN, deadline)) {
      const ssize_t n = recv(socket_.get(), bytes.data(), bytes.size(), 0);
      if (n > 0) bytes.resize(static_cast<std::size_t>(n));
      if (n >= 0 || (errno != EAGAIN && errno != EINTR)) return n > 0;
    }
    return false;
  }

  bool send_bytes(const std::string& bytes, Clock::time_point deadline) {
    for (std::size_t sent = 0; sent < bytes.size();) {
      if (!socket_.is_open() || !wait_until_ready(POLLOUT, deadline)) return false;
      const ssize_t n = send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (n > 0) sent += static_cast<std::size_t>(n);
    }
    return true;
  }

  bool wait_until_ready(short events, Clock::time_point deadline) {
    for (;;) {
      pollfd polled{socket_.get(), events, 0};
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      const int n =
          poll(&polled, 1, static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 1000)));
      if (n > 0) return true;
      if ((n < 0 && errno != EINTR) || Clock::now() >= deadline) return false;
    }
  }

  std::string host_;
  int port_;
  std::mutex mutex_;  // one request at a time
  FileDescriptor socket_;
  std::optional<TlsKey> key_;
  std::optional<TlsStream> tls_;
  std::string input_;  // received and decrypted
};

}  // namespace

std::shared_ptr<Store> connect_tcp(const std::vector<std::string>& hosts, int port,
                                   const Member& member) {
  return std::make_shared<Client>(hosts, port, member);
}

}  // namespace tutti::distributed::rendezvous
