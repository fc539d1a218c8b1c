// The TCP store on rank 0: it keeps the table, and one thread serves the other ranks, each over a
// connection that lives as long as that rank's store. A connection begins with the handshake of TLS
// (tls.h); whoever cannot prove to belong to this run is hung up on. A connection that breaks
// later, before its rank has said that it leaves, means that the rank's process has died: the run
// then fails with that as its cause.
//
// Strangers can reach this thread, so what they may use is limited: the number of connections, the
// bytes of a greeting and its time. What a rank may use is limited, too: the table (store.h), and
// the replies that it has not received yet, beyond which its requests are not read.
#include "messages.h"
#include "secret.h"
#include "socket.h"
#include "tls.h"

#include <fmt/format.h>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

namespace tutti::distributed::rendezvous {
namespace {

using namespace std::chrono_literals;

// How long rank 0 stays for ranks that have not left.
constexpr auto leave_timeout = 10s;
// Connections besides one for each rank.
constexpr std::size_t max_guests = 16;
// The time for a greeting while there are as many connections as allowed.
constexpr auto crowded_timeout = 1s;
// The pause after the system had no descriptor or memory for another connection.
constexpr auto accept_pause = 100ms;
constexpr std::size_t max_greeting_bytes = 4096;
// Of the message in which a rank says who it is.
constexpr std::size_t max_hello_bytes = 64;
// Beyond so many bytes of replies that wait to be sent, a connection is not read.
constexpr std::size_t max_pending_bytes = std::size_t{1} << 18;

// One connection to rank 0. It is a guest until its greeting has been accepted.
struct Connection {
  Channel channel;
  std::string peer;  // the address of the other end
  Clock::time_point since = Clock::now();
  int rank = -1;            // known once its greeting was accepted
  bool is_refused = false;  // is closed when everything has been sent
  bool has_asked = false;   // it has sent a request, so it has got rank 0's answer
  bool has_left = false;    // it has said that it leaves
  bool is_over = false;

  bool is_guest() const { return rank < 0; }
  bool is_full() const { return channel.pending() >= max_pending_bytes; }
  bool is_read() const { return !is_refused && !is_full(); }
};

class Server : public Store {
 public:
  Server(const std::vector<std::string>& hosts, int port, const Member& member)
      : Store(member),
        host_(hosts.size() == 1 ? hosts.front() : "*"),
        listeners_(listen_on(hosts, port, !member.secret.empty())),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        present_(static_cast<std::size_t>(member.size), false),
        ranks_to_come_(member.size - 1) {
    if (!wake_.is_open())
      tutti::fail<DistributedError>("rendezvous: rank 0 cannot make an eventfd: {}",
                                    std::strerror(errno));
    // The address is ours already, so no other run writes this file.
    if (member.secret.empty())
      host_secret_.emplace(path_of_host_secret(member.run_id, host_, listeners_.port));
    key_.emplace(host_secret_ ? host_secret_->secret() : member.secret, member.run_id);
    if (member.run_id.empty()) set_run_id("unnamed " + to_hex(random_secret()).substr(0, 8));
    try {
      thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error& error) {
      tutti::fail<DistributedError>("rendezvous: rank 0 cannot start its thread: {}", error.what());
    }
  }

  ~Server() override {
    if (is_forked()) {  // the thread and the file are the parent's
      thread_.detach();
      if (host_secret_) host_secret_->release();
      return;
    }
    stopping_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
    thread_.join();
  }

  std::string where() const override { return fmt::format("{}:{}", host_, listeners_.port); }

 private:
  Values carry_out(const Request& request) override {
    const std::lock_guard lock(mutex_);
    return table_.apply(request);
  }

  // ---- the thread

  // Serves until rank 0 stops and all others have left, or leave_timeout after the stop.
  void serve() noexcept {
    for (Clock::time_point end = Clock::time_point::max(); !is_over(end);) {
      try {
        serve_all(wait_for_events());
      } catch (const std::exception& error) {
        fail_run("the rendezvous thread of rank 0 failed: {}", error.what());
        std::this_thread::sleep_for(accept_pause);
      }
    }
  }

  bool is_over(Clock::time_point& end) const {
    if (!stopping_) return false;
    if (end == Clock::time_point::max())
      end = Clock::now() + std::min<Clock::duration>(leave_timeout, member().timeout);
    return Clock::now() >= end || std::all_of(connections_.begin(), connections_.end(),
                                              [](const Connection& c) { return c.is_guest(); });
  }

  // Returns the states of wake_, of every connection, and of the listeners unless accepting pauses.
  // It returns after a while also without an event, because greetings and the end have deadlines.
  std::vector<pollfd> wait_for_events() const {
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
    for (const Connection& c : connections_)
      polled.push_back(
          {c.channel.fd(),
           static_cast<short>((c.is_read() ? POLLIN : 0) | (c.channel.pending() > 0 ? POLLOUT : 0)),
           0});
    if (may_accept())
      for (const FileDescriptor& listener : listeners_.sockets)
        polled.push_back({listener.get(), POLLIN, 0});
    const auto patience = stopping_ ? 20ms : may_accept() ? 200ms : accept_pause;
    if (poll(polled.data(), polled.size(), static_cast<int>(patience.count())) < 0 &&
        errno != EINTR)
      throw std::system_error(errno, std::generic_category(), "poll");
    if (polled[0].revents) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof(count));
    }
    return polled;
  }

  void serve_all(const std::vector<pollfd>& polled) {
    const std::size_t listeners_at = 1 + connections_.size();
    for (std::size_t i = 0; i < connections_.size(); ++i)
      serve(connections_[i], polled[i + 1].revents);
    std::erase_if(connections_, [](const Connection& c) { return c.is_over; });
    for (std::size_t i = listeners_at; i < polled.size(); ++i)
      if (polled[i].revents) accept_connections(polled[i].fd);
  }

  std::size_t max_connections() const { return present_.size() - 1 + max_guests; }

  bool may_accept() const {
    return connections_.size() < max_connections() && Clock::now() >= accept_from_;
  }

  void accept_connections(int listener) {
    while (may_accept()) {
      FileDescriptor socket(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.is_open()) {
        // Without a pause, poll() would report the waiting connection again and again.
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
          accept_from_ = Clock::now() + accept_pause;
        return;
      }
      set_connection_options(socket.get());
      std::string peer = peer_address(socket.get());
      connections_.push_back({.channel = {std::move(socket), *key_, TlsStream::Side::server},
                              .peer = std::move(peer)});
    }
  }

  // ---- one connection

  // Receives, answers and sends what it can; closes the connection where it is over.
  void serve(Connection& c, short events) noexcept {
    try {
      bool open = receive(c, events);
      if (c.is_guest()) open = open && greet(c) && Clock::now() < deadline_of(c);
      open = answer_and_send(c) && open;
      if (c.is_refused && c.channel.pending() == 0) open = false;
      if (!open) close_connection(c);
    } catch (const std::exception& error) {
      close_connection(c, error.what());
    }
  }

  Clock::time_point deadline_of(const Connection& guest) const {
    const bool is_crowded = connections_.size() >= max_connections();
    return guest.since + (is_crowded ? std::min<Clock::duration>(crowded_timeout, greeting_timeout)
                                     : greeting_timeout);
  }

  // Decides about a guest that has proved to belong to this run and has said who it is. Returns
  // false where the connection is to be closed at once.
  bool greet(Connection& c) {
    if (c.is_refused || !c.channel.is_proved()) return true;
    Message message;
    const ReadResult taken = c.channel.take(max_hello_bytes, message);
    if (taken == ReadResult::incomplete) return true;
    Hello hello;
    if (taken == ReadResult::malformed || !decode(message, hello)) return false;
    const std::string refusal = refusal_of(hello);
    c.channel.put(encode(Reply{.values = {{"run id", member().run_id}}, .error = refusal}));
    c.is_refused = !refusal.empty();
    if (c.is_refused) return true;
    c.rank = hello.rank;
    present_[static_cast<std::size_t>(c.rank)] = true;
    return true;
  }

  // Returns why a rank is refused; empty where it is not.
  std::string refusal_of(const Hello& hello) const {
    const int size = member().size;
    if (hello.size != size)
      return fmt::format("rank 0 was started for {} ranks, this one for {}", size, hello.size);
    if (hello.rank < 1 || hello.rank >= size)
      return fmt::format("rank {} is none of the ranks 1 to {}", hello.rank, size - 1);
    if (present_[static_cast<std::size_t>(hello.rank)])
      return fmt::format("another process has already come as rank {}", hello.rank);
    return {};
  }

  // Answers requests and sends the replies, until there are no more or the other end does not
  // receive. Returns false where the connection is to be closed.
  bool answer_and_send(Connection& c) {
    for (;;) {
      if (!c.is_guest()) answer_requests(c);
      const bool was_full = c.is_full();
      if (!c.channel.send()) return false;
      if (!was_full || c.is_full()) return true;
    }
  }

  // Answers the requests that are complete, while few enough replies are pending. Throws a
  // DistributedError where one is malformed.
  void answer_requests(Connection& c) {
    while (!c.is_full()) {
      Message message;
      const ReadResult taken = c.channel.take(max_request_bytes, message);
      if (taken == ReadResult::incomplete) return;
      Request request;
      if (taken == ReadResult::malformed || !decode(message, request))
        tutti::fail<DistributedError>("a message from it is no request");
      if (!std::exchange(c.has_asked, true)) count_arrival();
      if (request.operation == Request::Operation::leave) c.has_left = true;
      c.channel.put(encode(reply_to(request)));
    }
  }

  Reply reply_to(const Request& request) {
    try {
      return {.values = this->request(request)};
    } catch (const Error& error) {
      return {.error = error.what()};
    }
  }

  // Once every rank knows the secret, its file is of no use any more.
  void count_arrival() {
    if (--ranks_to_come_ == 0 && host_secret_) host_secret_->remove();
  }

  // A rank that hangs up before its first request has given up waiting for rank 0's answer, and
  // will connect again: that is no death. `fault` says why rank 0 closes the connection by itself.
  void close_connection(Connection& c, const char* fault = nullptr) noexcept {
    c.is_over = true;
    if (c.is_guest()) return;
    present_[static_cast<std::size_t>(c.rank)] = false;
    if (c.has_left || stopping_) return;
    if (fault)
      fail_run("the connection of rank {} (on {}) to rank 0 was closed: {}", c.rank, c.peer, fault);
    else if (c.has_asked)
      fail_run("the process of rank {} (on {}) has ended: its connection to rank 0 broke", c.rank,
               c.peer);
  }

  template <class... Args>
  void fail_run(fmt::format_string<Args...> text, Args&&... args) noexcept {
    try {
      fail({.what = fmt::format(text, std::forward<Args>(args)...)});
    } catch (const std::exception&) {  // no memory, or the table is full: deadlines remain
    }
  }

  // Reads what has arrived, within limits. Returns false where the other end has closed the
  // connection.
  static bool receive(Connection& c, short events) {
    // A connection that is not read reports only its end, again and again.
    if (!c.is_read()) return !(events & (POLLERR | POLLHUP | POLLNVAL));
    if (events == 0) return true;
    while (c.channel.untaken() <= max_request_bytes) {
      const std::size_t room = c.is_guest() ? max_greeting_bytes - c.channel.received()
                                            : max_request_bytes;
      if (room == 0) return false;
      switch (c.channel.receive(room)) {
        case Channel::Arrival::nothing: return true;
        case Channel::Arrival::some: break;
        case Channel::Arrival::closed: return false;
        case Channel::Arrival::refused:
        case Channel::Arrival::broken:
          if (!c.is_guest())
            tutti::fail<DistributedError>("a message from it was altered on its way or repeated");
          c.is_refused = true;  // it is told so, and no more
          return true;
      }
    }
    return true;
  }

  std::string host_;
  Listeners listeners_;
  FileDescriptor wake_;  // wakes the thread for the stop
  std::mutex mutex_;     // of the table, which rank 0's own threads use, too
  Table table_;
  // What follows is used by the thread alone.
  std::vector<bool> present_;  // which ranks are connected
  int ranks_to_come_;          // how many have not asked yet
  Clock::time_point accept_from_ = {};
  std::optional<HostSecret> host_secret_;  // where the user has given none
  std::optional<TlsKey> key_;
  std::vector<Connection> connections_;

  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<Store> serve_tcp(const std::vector<std::string>& hosts, int port,
                                 const Member& member) {
  return std::make_shared<Server>(hosts, port, member);
}

}  // namespace tutti::distributed::rendezvous
