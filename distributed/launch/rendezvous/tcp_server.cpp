// The TCP store on rank 0: it keeps the table, and one thread serves the other ranks, each over a
// connection that lives as long as that rank's store. A connection begins with a greeting
// (greeting.h); whoever sends anything else is hung up on. A connection that breaks later, before
// its rank has said that it leaves, means that the rank's process has died: the run then fails with
// that as its cause.
#include "greeting.h"
#include "socket.h"

#include <fmt/format.h>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

namespace tutti::distributed::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto leave_timeout = 10s;  // how long rank 0 stays for ranks that have not left

// One connection to rank 0.
struct Connection {
  Socket socket;
  std::string peer;                          // the address of the other end
  Clock::time_point greeting_deadline = {};  // when its greeting must have arrived
  std::string input = {}, output = {};       // bytes received and to be sent
  int rank = -1;                             // known once its greeting was accepted
  bool is_refused = false;
  bool has_asked = false;  // it has sent a request, so it has got rank 0's answer
  bool has_left = false;   // it has said that it leaves
};

class Server : public Store {
 public:
  Server(const std::string& host, int port, const Member& member)
      : Store(member),
        host_(host.empty() ? "*" : host),
        listener_(listen_on(port, host == "localhost" || host == "127.0.0.1" || host == "::1")),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        present_(static_cast<std::size_t>(member.size), false) {
    thread_ = std::thread([this] { serve(); });
  }

  ~Server() override {
    if (is_forked()) {  // the thread runs in the parent only
      thread_.detach();
      return;
    }
    stopping_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(wake_.fd(), &one, sizeof(one));
    thread_.join();
  }

  std::string where() const override { return fmt::format("{}:{}", host_, listener_.port); }

  Values request(const Request& request) override {
    const std::lock_guard lock(mutex_);
    return table_.apply(request);
  }

 private:
  // ---- the thread

  // Serves until rank 0 stops and all others have left, or leave_timeout after the stop.
  void serve() {
    Clock::time_point end = Clock::time_point::max();
    while (!is_over(end)) {
      const std::vector<pollfd> polled = wait_for_events();
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 0; i < connections_.size(); ++i)
        serve(connections_[i], polled[i + 2].revents != 0);
      std::erase_if(connections_, [](const Connection& c) { return c.socket.fd() < 0; });
      if (polled[1].revents) accept_connections();
    }
  }

  bool is_over(Clock::time_point& end) const {
    if (!stopping_) return false;
    if (end == Clock::time_point::max())
      end = Clock::now() + std::min<Clock::duration>(leave_timeout, member().timeout);
    return Clock::now() >= end || std::none_of(connections_.begin(), connections_.end(),
                                               [](const Connection& c) { return c.rank >= 0; });
  }

  // Returns the states of wake_, of the listener and of every connection. It returns after a while
  // also without an event, because greetings and the end have deadlines.
  std::vector<pollfd> wait_for_events() const {
    std::vector<pollfd> polled{{wake_.fd(), POLLIN, 0}, {listener_.socket.fd(), POLLIN, 0}};
    for (const Connection& c : connections_)
      polled.push_back(
          {c.socket.fd(), static_cast<short>(c.output.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    poll(polled.data(), polled.size(), stopping_ ? 20 : 200);
    if (polled[0].revents) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t n = read(wake_.fd(), &count, sizeof(count));
    }
    return polled;
  }

  void accept_connections() {
    for (;;) {
      Socket socket(accept4(listener_.socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket.fd() < 0) return;
      set_connection_options(socket.fd());
      std::string peer = peer_address(socket.fd());
      connections_.push_back({.socket = std::move(socket),
                              .peer = std::move(peer),
                              .greeting_deadline = Clock::now() + greeting_timeout});
    }
  }

  // ---- one connection

  // Receives, answers and sends what it can; closes the connection where it is over.
  void serve(Connection& c, bool is_ready) {
    bool open = !is_ready || receive(c);
    if (c.rank < 0 && !c.is_refused)
      open = open && check_greeting(c) && Clock::now() < c.greeting_deadline;
    if (c.rank >= 0) open = answer_requests(c) && open;
    open = send_output(c) && open;
    if (c.is_refused && c.output.empty()) open = false;
    if (!open) close_connection(c);
  }

  // Accepts or refuses the greeting once it is complete. Returns false where it is none.
  bool check_greeting(Connection& c) {
    Greeting greeting;
    const Taken taken = take_greeting(c.input, greeting);
    if (taken != Taken::complete) return taken == Taken::incomplete;
    const std::string refusal = refusal_of(greeting, member(), present_);
    c.is_refused = !refusal.empty();
    if (!c.is_refused) {
      c.rank = greeting.rank;
      present_[static_cast<std::size_t>(c.rank)] = true;
    }
    c.output += encode_answer(refusal);
    return true;
  }

  // Answers the requests that are complete. Returns false where one is malformed.
  bool answer_requests(Connection& c) {
    for (;;) {
      std::string message;
      const Taken taken = take_message(c.input, message);
      if (taken != Taken::complete) return taken == Taken::incomplete;
      c.has_asked = true;
      Request request;
      if (!decode(message, request)) return false;
      if (request.operation == Request::Operation::leave) c.has_left = true;
      c.output += framed(encode(table_.apply(request)));
    }
  }

  // A rank that hangs up before its first request has given up waiting for rank 0's answer, and
  // will connect again: that is no death.
  void close_connection(Connection& c) {
    if (c.rank >= 0) {
      present_[static_cast<std::size_t>(c.rank)] = false;
      if (c.has_asked && !c.has_left && !stopping_) report_death(c);
    }
    c.socket = Socket();
  }

  void report_death(const Connection& c) {
    const std::string text =
        fmt::format(" \nthe process of rank {} (on {}) has ended: its connection to rank 0 broke",
                    c.rank, c.peer);
    table_.apply({Request::Operation::put, "failure", text});
  }

  // Returns false where the other end has closed the connection, or sends more than any request.
  static bool receive(Connection& c) {
    char buffer[4096];
    for (;;) {
      const ssize_t n = recv(c.socket.fd(), buffer, sizeof(buffer), 0);
      if (n > 0) c.input.append(buffer, static_cast<std::size_t>(n));
      if (c.input.size() > 2 * max_request_bytes) return false;
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (n < 0 && errno == EAGAIN) return true;
    }
  }

  static bool send_output(Connection& c) {
    while (!c.output.empty()) {
      const ssize_t n = send(c.socket.fd(), c.output.data(), c.output.size(), MSG_NOSIGNAL);
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      c.output.erase(0, static_cast<std::size_t>(n));
    }
    return true;
  }

  std::string host_;
  Listener listener_;
  Socket wake_;       // wakes the thread for the stop
  std::mutex mutex_;  // of the table, which rank 0's own threads use, too
  Table table_;
  std::vector<Connection> connections_;  // used by the thread alone
  std::vector<bool> present_;            // which ranks are connected; used by the thread alone
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<Store> serve_tcp(const std::string& host, int port, const Member& member) {
  return std::make_shared<Server>(host, port, member);
}

}  // namespace tutti::distributed::rendezvous
