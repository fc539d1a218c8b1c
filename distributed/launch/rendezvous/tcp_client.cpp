// The TCP store on every rank but rank 0: one connection to rank 0, over which it sends requests
// and waits for the replies. It connects, and connects again, until rank 0 proves that it belongs
// to this run and accepts this rank, or the deadline comes.
#include "crypto.h"
#include "greeting.h"
#include "secret.h"
#include "socket.h"

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
    if (!send_bytes(outgoing_->frame(encode(request)), deadline))
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
    ClientGreeting greeting(member(), secret);
    std::string start(answer_magic.size(), '\0'), nonce(nonce_size, '\0');
    std::string mark(1, '\0'), proof(hmac_size, '\0');
    const std::pair stranger(Outcome::failed, "what answers there is no rank 0 of tutti");
    // What other servers send first may be short, and then nothing more comes.
    if (!send_bytes(greeting.hello(), deadline) || !receive_bytes(start, deadline) ||
        start != answer_magic || !receive_bytes(nonce, deadline)) {
      const bool is_silent = start[0] == '\0' && Clock::now() >= deadline;
      if (!is_silent) return stranger;
      return {Outcome::failed, "what listens there does not answer; its process hangs or is busy"};
    }
    const std::string claim = greeting.prove(start + nonce);
    if (claim.empty() || !send_bytes(claim, deadline) || !receive_bytes(mark, deadline))
      return stranger;
    if (mark[0] == refused_mark)
      return {Outcome::refused,
              fmt::format("rank 0 there belongs to another run: its secret or its run id is not "
                          "that of this process (run id '{}')",
                          member().run_id)};
    if (!receive_bytes(proof, deadline)) return stranger;
    if (!greeting.is_proof(proof))
      return {Outcome::failed, "what answers there does not know the secret of this run"};
    outgoing_.emplace(greeting.session_key(), AuthenticatedStream::Sender::client);
    incoming_.emplace(greeting.session_key(), AuthenticatedStream::Sender::server);
    std::string refusal;
    if (receive_message(refusal, deadline) != ReadResult::complete) return stranger;
    return {refusal.empty() ? Outcome::accepted : Outcome::refused, refusal};
  }

  // ---- sending and receiving. Each function returns false where the connection is broken, and at
  // the deadline.

  // Returns `incomplete` where the rest does not come.
  ReadResult receive_message(std::string& message, Clock::time_point deadline) {
    // Rank 0 sends nothing that was not asked for, so each frame is received alone.
    std::string frame(sizeof(std::uint32_t), '\0');
    if (!receive_bytes(frame, deadline)) return ReadResult::incomplete;
    const std::size_t size = MessageReader{frame}.number();
    if (size > max_reply_bytes) return ReadResult::malformed;
    // The length is not authenticated yet, so memory is taken as the bytes come.
    const std::size_t total = size + AuthenticatedStream::frame_overhead;
    while (frame.size() < total) {
      std::string part(std::min<std::size_t>(total - frame.size(), 1 << 16), '\0');
      if (!receive_bytes(part, deadline)) return ReadResult::incomplete;
      frame += part;
    }
    return incoming_->take(frame, max_reply_bytes, message);
  }

  // Fills `bytes`.
  bool receive_bytes(std::string& bytes, Clock::time_point deadline) {
    for (std::size_t got = 0; got < bytes.size();) {
      if (!socket_.is_open() || !wait_until_ready(POLLIN, deadline)) return false;
      const ssize_t n = recv(socket_.get(), bytes.data() + got, bytes.size() - got, 0);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (n > 0) got += static_cast<std::size_t>(n);
    }
    return true;
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
  std::optional<AuthenticatedStream> outgoing_, incoming_;
};

}  // namespace

std::shared_ptr<Store> connect_tcp(const std::vector<std::string>& hosts, int port,
                                   const Member& member) {
  return std::make_shared<Client>(hosts, port, member);
}

}  // namespace tutti::distributed::rendezvous
