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
      channel_.reset();  // a late reply would be taken for that of the next request
      tutti::fail<DistributedError>("rendezvous at {}: {}", where(), why);
    };
    if (!channel_) fail_connection("the connection to rank 0 has failed before");
    channel_->put(encode(request));
    Reply reply;
    const ReadResult taken = receive(reply, deadline);
    if (taken == ReadResult::incomplete)
      fail_connection("rank 0 does not answer; its process has ended or hangs");
    if (taken == ReadResult::malformed)
      fail_connection("a message of rank 0 was altered on its way or repeated");
    if (!reply.error.empty()) tutti::fail<DistributedError>("{} (at {})", reply.error, where());
    return std::move(reply.values);
  }

  // ---- connecting. A function that fails gives the reason in `why`.

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
      FileDescriptor socket = connect_to(*each, soon, why);
      if (!socket.is_open()) continue;
      const auto [outcome, text] = greet(std::move(socket), secret, soon);
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

  // Returns a connection, or none.
  static FileDescriptor connect_to(const addrinfo& address, Clock::time_point deadline,
                                   std::string& why) {
    FileDescriptor socket(
        ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int error = 0;
    socklen_t size = sizeof(error);
    if (!socket.is_open() ||
        (connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0 && errno != EINPROGRESS)) {
      why = std::strerror(errno);
      return {};
    }
    if (!wait_until_ready(socket.get(), POLLOUT, deadline)) {
      why = "no answer";
      return {};
    }
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      why = std::strerror(error);
      return {};
    }
    set_connection_options(socket.get());
    return socket;
  }

  enum class Outcome { accepted, refused, failed };

  // Greets rank 0. Returns also why it did not end well.
  std::pair<Outcome, std::string> greet(FileDescriptor socket, const std::string& secret,
                                        Clock::time_point deadline) {
    const std::pair stranger(Outcome::failed, "what answers there is no rank 0 of tutti");
    channel_.reset();
    key_.emplace(secret, member().run_id);
    channel_.emplace(std::move(socket), *key_, TlsStream::Side::client);
    const auto arrival = flow(deadline, [&] { return channel_->is_proved(); });
    if (arrival == Channel::Arrival::refused)
      return {Outcome::refused,
              fmt::format("rank 0 there belongs to another run: its secret or its run id is not "
                          "that of this process (run id '{}')",
                          member().run_id)};
    if (!channel_->is_proved() && channel_->received() == 0 && Clock::now() >= deadline)
      return {Outcome::failed, "what listens there does not answer; its process hangs or is busy"};
    // What other servers send first may be short, and then nothing more comes.
    if (arrival != Channel::Arrival::some) return stranger;
    channel_->put(encode(Hello{member().rank, member().size}));
    Reply reply;
    if (receive(reply, deadline) != ReadResult::complete) return stranger;
    if (!reply.error.empty()) return {Outcome::refused, reply.error};
    set_run_id(reply.values["run id"]);  // its own, unless it has been given none
    return {Outcome::accepted, {}};
  }

  // ---- sending and receiving

  // Returns `incomplete` where the rest does not come.
  ReadResult receive(Reply& reply, Clock::time_point deadline) {
    Message message;
    ReadResult taken = ReadResult::incomplete;
    const auto arrival = flow(deadline, [&] {
      taken = channel_->take(max_reply_bytes, message);
      return taken != ReadResult::incomplete;
    });
    const bool is_none = arrival == Channel::Arrival::broken ||
                         (taken == ReadResult::complete && !decode(message, reply));
    return is_none ? ReadResult::malformed : taken;
  }

  // Sends and receives until `is_done`. Returns `some` then, `nothing` at the deadline, and else
  // how the connection has ended.
  template <class IsDone>
  Channel::Arrival flow(Clock::time_point deadline, const IsDone& is_done) {
    while (!is_done()) {
      if (!channel_->send()) return Channel::Arrival::closed;
      const int events = POLLIN | (channel_->pending() > 0 ? POLLOUT : 0);
      if (!wait_until_ready(channel_->fd(), events, deadline)) return Channel::Arrival::nothing;
      const auto arrival = channel_->receive(max_reply_bytes);
      if (arrival != Channel::Arrival::some && arrival != Channel::Arrival::nothing) return arrival;
    }
    return Channel::Arrival::some;
  }

  // Returns false at the deadline.
  static bool wait_until_ready(int fd, int events, Clock::time_point deadline) {
    for (;;) {
      pollfd polled{fd, static_cast<short>(events), 0};
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
  std::optional<TlsKey> key_;
  std::optional<Channel> channel_;
};

}  // namespace

std::shared_ptr<Store> connect_tcp(const std::vector<std::string>& hosts, int port,
                                   const Member& member) {
  return std::make_shared<Client>(hosts, port, member);
}

}  // namespace tutti::distributed::rendezvous
