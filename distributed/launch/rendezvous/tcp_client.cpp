// The TCP store on every rank but rank 0: one connection to rank 0, over which it sends requests
// and waits for the replies. It connects, and connects again, until rank 0 answers its greeting or
// the deadline comes.
#include "greeting.h"
#include "socket.h"

#include <fmt/format.h>

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
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
    std::string why = "no address";
    for (;;) {
      for (const std::string& host : hosts) {
        host_ = host;
        if (reach_host(deadline, hosts.size() == 1, why)) return;
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
    } catch (const Error&) {  // rank 0 is gone already
    }
  }

  std::string where() const override { return fmt::format("{}:{}", host_, port_); }

  Values request(const Request& request) override {
    const std::lock_guard lock(mutex_);
    const auto deadline = deadline_after(std::min(request_timeout, member().timeout));
    std::string reply;
    if (!send_bytes(framed(encode(request)), deadline) || !receive_message(reply, deadline)) {
      socket_ = Socket();  // a late reply would be taken for that of the next request
      tutti::fail<DistributedError>(
          "rendezvous at {}: rank 0 does not answer; its process has ended or hangs", where());
    }
    return decode_reply(reply);
  }

 private:
  // ---- connecting. Each function returns false, with the reason in `why`, where it fails.

  bool reach_host(Clock::time_point deadline, bool refusal_is_final, std::string& why) {
    addrinfo hints = {}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (const int code = getaddrinfo(host_.c_str(), std::to_string(port_).c_str(), &hints, &found);
        code != 0) {
      why = gai_strerror(code);
      return false;
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
    for (const addrinfo* each = found; each; each = each->ai_next) {
      const auto soon = std::min(deadline, Clock::now() + greeting_timeout);
      std::string refusal;
      if (!connect_to(*each, soon, why) || !greet(refusal, soon, why)) continue;
      if (refusal.empty()) return true;
      why = "turned away: " + refusal;
      if (refusal_is_final)
        tutti::fail<DistributedError>("rendezvous at {}: rank {} was turned away: {}", where(),
                                      member().rank, refusal);
    }
    return false;
  }

  bool connect_to(const addrinfo& address, Clock::time_point deadline, std::string& why) {
    socket_ = Socket(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (connect(socket_.fd(), address.ai_addr, address.ai_addrlen) != 0 && errno != EINPROGRESS) {
      why = std::strerror(errno);
      return false;
    }
    if (!wait_until_ready(POLLOUT, deadline)) {
      why = "no answer";
      return false;
    }
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      why = std::strerror(error);
      return false;
    }
    set_connection_options(socket_.fd());
    return true;
  }

  bool greet(std::string& refusal, Clock::time_point deadline, std::string& why) {
    std::string magic(answer_magic.size(), '\0');
    if (send_bytes(encode_greeting(member()), deadline) &&
        receive_bytes(magic.data(), magic.size(), deadline) && magic == answer_magic &&
        receive_message(refusal, deadline))
      return true;
    why = "what answers there is no rank 0 of tutti";
    return false;
  }

  // ---- sending and receiving. Each function returns false where the connection is broken, and at
  // the deadline.

  bool receive_message(std::string& message, Clock::time_point deadline) {
    std::uint32_t size = 0;
    if (!receive_bytes(reinterpret_cast<char*>(&size), sizeof(size), deadline) ||
        size > max_reply_bytes)
      return false;
    message.resize(size);
    return receive_bytes(message.data(), size, deadline);
  }

  bool receive_bytes(char* to, std::size_t size, Clock::time_point deadline) {
    for (std::size_t got = 0; got < size;) {
      if (socket_.fd() < 0 || !wait_until_ready(POLLIN, deadline)) return false;
      const ssize_t n = recv(socket_.fd(), to + got, size - got, 0);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (n > 0) got += static_cast<std::size_t>(n);
    }
    return true;
  }

  bool send_bytes(const std::string& bytes, Clock::time_point deadline) {
    for (std::size_t sent = 0; sent < bytes.size();) {
      if (socket_.fd() < 0 || !wait_until_ready(POLLOUT, deadline)) return false;
      const ssize_t n = send(socket_.fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (n > 0) sent += static_cast<std::size_t>(n);
    }
    return true;
  }

  bool wait_until_ready(short events, Clock::time_point deadline) {
    for (;;) {
      pollfd polled{socket_.fd(), events, 0};
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
  Socket socket_;
};

}  // namespace

std::shared_ptr<Store> connect_tcp(const std::vector<std::string>& hosts, int port,
                                   const Member& member) {
  return std::make_shared<Client>(hosts, port, member);
}

}  // namespace tutti::distributed::rendezvous
