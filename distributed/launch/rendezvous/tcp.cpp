// A store over TCP. Rank 0 keeps the table and a thread that serves the other ranks, each over one
// connection that lives as long as its store. A connection begins with a greeting (magic, rank,
// world size, run id) that has to come at once and has to fit; whoever sends anything else is hung
// up on. A connection that breaks later without a farewell means that its process has died: the run
// fails with that as its cause.
#include "store.h"

#include <fmt/ranges.h>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

namespace tutti::distributed::rendezvous {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::string_view magic = "tutti/1\n";
constexpr std::string_view answer_magic =
    "rank 0/1";                 // another one, so that an echo is not taken for an answer
constexpr auto patience = 5s;   // for a greeting and its answer
constexpr auto slowest = 30s;   // for the answer to a request: a rank 0 that was stopped gives none
constexpr auto farewell = 10s;  // how long rank 0 stays for those who have not left
constexpr std::uint32_t longest = 1u << 20;  // bytes of one message to rank 0
constexpr std::uint32_t longest_answer = 1u
                                         << 26;  // which may list what thousands of ranks have said

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// ---- messages: numbers are 32-bit in the byte order of the host, texts are a length and their
// bytes

void write_number(std::string& message, std::uint32_t number) {
  message.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void write_text(std::string& message, const std::string& text) {
  write_number(message, static_cast<std::uint32_t>(text.size()));
  message += text;
}

struct Reader {
  std::string_view rest;
  bool good = true;

  std::uint32_t number() {
    std::uint32_t value = 0;
    if (rest.size() < sizeof(value)) good = false;
    else std::memcpy(&value, rest.data(), sizeof(value)), rest.remove_prefix(sizeof(value));
    return value;
  }
  std::string text() {
    const std::uint32_t size = number();
    if (!good || rest.size() < size) return good = false, std::string();
    std::string value(rest.substr(0, size));
    rest.remove_prefix(size);
    return value;
  }
};

// A message and its length in front.
std::string framed(const std::string& message) {
  std::string frame;
  write_text(frame, message);
  return frame;
}

std::string greeting_of(const Member& member) {
  std::string greeting;
  write_number(greeting, static_cast<std::uint32_t>(member.rank));
  write_number(greeting, static_cast<std::uint32_t>(member.size));
  write_text(greeting, member.run_id);
  return std::string(magic) + framed(greeting);
}

// ---- the side of rank 0

struct Guest {
  Socket socket;
  std::string peer;  // its address
  std::string in = {}, out = {};
  Clock::time_point hurry = {};  // the greeting must be here by then
  int rank = -1;                 // once it has greeted
  bool asked = false;            // it has got its answer and gone on
  bool left = false, refused = false;
};

std::string address_of(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST] = "?";
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0)
    getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), nullptr, 0,
                NI_NUMERICHOST);
  return host;
}

class Server : public Store {
 public:
  Server(const std::string& host, int port, const Member& member)
      : Store(member),
        host_(host.empty() ? "*" : host),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        present_(static_cast<std::size_t>(member.size), false) {
    listen_on(port, host == "localhost" || host == "127.0.0.1" || host == "::1");
    thread_ = std::thread([this] { serve(); });
  }

  ~Server() override {
    if (is_forked()) {  // the thread is in the parent
      thread_.detach();
      return;
    }
    stopping_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(wake_.fd(), &one, sizeof(one));
    thread_.join();
  }

  std::string where() const override { return fmt::format("{}:{}", host_, port_); }

  Values request(const Request& request) override {
    const std::lock_guard lock(mutex_);
    return table_.apply(request);
  }

 private:
  // On every address, of IPv4 and IPv6: the name by which others reach this host may lead here
  // through another one.
  void listen_on(int port, bool only_this_host) {
    for (const int family : {AF_INET6, AF_INET}) {
      const bool six = family == AF_INET6;
      listener_ = Socket(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (listener_.fd() < 0 || (six && only_this_host)) continue;
      const int on = 1, off = 0;
      setsockopt(listener_.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      if (six) setsockopt(listener_.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
      sockaddr_storage address = {};
      socklen_t size = six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
      if (six) {
        auto& in6 = reinterpret_cast<sockaddr_in6&>(address);
        in6.sin6_family = AF_INET6;
        in6.sin6_port = htons(static_cast<std::uint16_t>(port));
        in6.sin6_addr = in6addr_any;
      } else {
        auto& in = reinterpret_cast<sockaddr_in&>(address);
        in.sin_family = AF_INET;
        in.sin_port = htons(static_cast<std::uint16_t>(port));
        in.sin_addr.s_addr = htonl(only_this_host ? INADDR_LOOPBACK : INADDR_ANY);
      }
      if (bind(listener_.fd(), reinterpret_cast<sockaddr*>(&address), size) == 0 &&
          ::listen(listener_.fd(), 1024) == 0) {
        getsockname(listener_.fd(), reinterpret_cast<sockaddr*>(&address), &size);
        port_ = ntohs(six ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                          : reinterpret_cast<sockaddr_in&>(address).sin_port);
        return;
      }
      if (errno == EADDRINUSE)
        tutti::fail<DistributedError>(
            "rendezvous: port {} is taken on the host of rank 0, maybe by another run; give "
            "another one (MASTER_PORT)",
            port);
    }
    tutti::fail<DistributedError>("rendezvous: cannot listen on port {}: {}", port,
                                  std::strerror(errno));
  }

  void serve() {
    Clock::time_point end = Clock::time_point::max();
    std::vector<pollfd> polled;
    for (;;) {
      if (stopping_ && end == Clock::time_point::max())
        end = Clock::now() + std::min<Clock::duration>(farewell, member().timeout);
      const bool alone =
          std::none_of(guests_.begin(), guests_.end(), [](const Guest& g) { return g.rank >= 0; });
      if (stopping_ && (alone || Clock::now() >= end)) return;
      polled.assign({{wake_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}});
      for (const Guest& guest : guests_)
        polled.push_back({guest.socket.fd(),
                          static_cast<short>(guest.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      // Looks around now and then: for greetings that do not come, and at the end.
      poll(polled.data(), polled.size(), stopping_ ? 20 : 200);
      if (polled[0].revents) {
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t n = read(wake_.fd(), &count, sizeof(count));
      }
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 0; i < guests_.size(); ++i) talk(guests_[i], polled[i + 2].revents != 0);
      std::erase_if(guests_, [](const Guest& guest) { return guest.socket.fd() < 0; });
      if (polled[1].revents) welcome();
    }
  }

  void welcome() {
    for (;;) {
      Socket socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket.fd() < 0) return;
      const int on = 1;
      setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
      std::string peer = address_of(socket.fd());
      guests_.push_back(
          {.socket = std::move(socket), .peer = std::move(peer), .hurry = Clock::now() + patience});
    }
  }

  void talk(Guest& guest, bool ready) {
    bool open = !ready || receive(guest);
    if (guest.rank < 0 && !guest.refused) open = open && greet(guest) && Clock::now() < guest.hurry;
    if (guest.rank >= 0) open = answer(guest) && open;
    open = send_out(guest) && open;
    if (guest.refused && guest.out.empty()) open = false;
    if (open) return;
    if (guest.rank >= 0) {
      // Who hangs up before it asks for anything has lost its patience with a slow greeting, and
      // comes again.
      present_[static_cast<std::size_t>(guest.rank)] = false;
      if (guest.asked && !guest.left && !stopping_) lost(guest);
    }
    guest.socket = Socket();
  }

  void lost(const Guest& guest) {
    const std::string text =
        fmt::format(" \nthe process of rank {} (on {}) has ended: its connection to rank 0 broke",
                    guest.rank, guest.peer);
    table_.apply({Request::Operation::put, "failure", text});
  }

  static bool receive(Guest& guest) {
    char buffer[4096];
    for (;;) {
      const ssize_t n = recv(guest.socket.fd(), buffer, sizeof(buffer), 0);
      if (n > 0) guest.in.append(buffer, static_cast<std::size_t>(n));
      if (guest.in.size() > 2 * longest) return false;
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (n < 0 && errno == EAGAIN) return true;
    }
  }

  static bool send_out(Guest& guest) {
    while (!guest.out.empty()) {
      const ssize_t n = send(guest.socket.fd(), guest.out.data(), guest.out.size(), MSG_NOSIGNAL);
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      guest.out.erase(0, static_cast<std::size_t>(n));
    }
    return true;
  }

  // Takes one whole message off the input, if there is one. False where the sender talks nonsense.
  static bool take(Guest& guest, std::optional<std::string>& message) {
    std::uint32_t size = 0;
    if (guest.in.size() < sizeof(size)) return true;
    std::memcpy(&size, guest.in.data(), sizeof(size));
    if (size > longest) return false;
    if (guest.in.size() - sizeof(size) < size) return true;
    message = guest.in.substr(sizeof(size), size);
    guest.in.erase(0, sizeof(size) + size);
    return true;
  }

  bool greet(Guest& guest) {
    const std::size_t seen = std::min(guest.in.size(), magic.size());
    if (guest.in.compare(0, seen, magic.substr(0, seen)) != 0) return false;
    if (seen < magic.size()) return true;
    std::optional<std::string> message;
    std::string rest = guest.in.substr(magic.size());
    std::swap(guest.in, rest);
    if (!take(guest, message)) return false;
    if (!message) return std::swap(guest.in, rest), true;
    Reader reader{*message};
    const auto rank = static_cast<int>(reader.number()), size = static_cast<int>(reader.number());
    const std::string run_id = reader.text();
    if (!reader.good) return false;
    std::string refusal;
    if (run_id != member().run_id)
      refusal = fmt::format("run '{}' meets there, this is run '{}'", member().run_id, run_id);
    else if (size != member().size)
      refusal =
          fmt::format("rank 0 was started for {} ranks, this one for {}", member().size, size);
    else if (rank < 1 || rank >= size || present_[static_cast<std::size_t>(rank)])
      refusal = fmt::format("another process has already come as rank {}", rank);
    guest.refused = !refusal.empty();
    if (!guest.refused) {
      guest.rank = rank;
      present_[static_cast<std::size_t>(rank)] = true;
    }
    guest.out += std::string(answer_magic) + framed(refusal);
    return true;
  }

  bool answer(Guest& guest) {
    for (;;) {
      std::optional<std::string> message;
      if (!take(guest, message)) return false;
      if (!message) return true;
      guest.asked = true;
      Reader reader{*message};
      const auto operation = static_cast<Request::Operation>(reader.number());
      Request request{operation, reader.text(), reader.text()};
      if (!reader.good) return false;
      if (operation == Request::Operation::leave) guest.left = true;
      std::string reply;
      for (const auto& [key, value] : table_.apply(request)) {
        write_text(reply, key);
        write_text(reply, value);
      }
      guest.out += framed(reply);
    }
  }

  std::string host_;
  int port_ = 0;
  Socket wake_, listener_;
  std::mutex mutex_;  // the table, also used by rank 0's own threads
  Table table_;
  std::vector<Guest> guests_;  // of the thread alone
  std::vector<bool> present_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

// ---- the side of the others

class Client : public Store {
 public:
  Client(const std::vector<std::string>& hosts, int port, const Member& member) : Store(member) {
    const auto deadline = deadline_after(member.timeout);
    std::string why = "no address";
    for (;;) {
      for (const std::string& host : hosts) {
        host_ = host;
        port_ = port;
        // With several addresses to choose from, one that leads to somebody else is no reason to
        // stop.
        if (reach(deadline, why, hosts.size() == 1)) return;
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
    if (is_forked()) return;  // the parent goes on with this connection
    try {
      request({Request::Operation::leave});
    } catch (const Error&) {  // rank 0 is gone already
    }
  }

  std::string where() const override { return fmt::format("{}:{}", host_, port_); }

  Values request(const Request& request) override {
    std::string message;
    write_number(message, static_cast<std::uint32_t>(request.operation));
    write_text(message, request.key);
    write_text(message, request.value);
    const std::lock_guard lock(mutex_);
    const auto deadline =
        deadline_after(std::min<std::chrono::milliseconds>(slowest, member().timeout));
    std::string reply;
    if (!(put(framed(message), deadline) && get(reply, deadline))) {
      socket_ = Socket();  // whatever still comes would answer an older question
      tutti::fail<DistributedError>(
          "rendezvous at {}: rank 0 does not answer; its process has ended or hangs", where());
    }
    Values values;
    for (Reader reader{reply}; !reader.rest.empty() && reader.good;) {
      std::string key = reader.text();
      values.emplace(std::move(key), reader.text());
    }
    return values;
  }

 private:
  bool reach(Clock::time_point deadline, std::string& why, bool only_one) {
    addrinfo hints = {}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (const int code = getaddrinfo(host_.c_str(), std::to_string(port_).c_str(), &hints, &found);
        code != 0) {
      why = gai_strerror(code);
      return false;
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
    for (const addrinfo* each = found; each; each = each->ai_next) {
      const auto soon = std::min(deadline, Clock::now() + patience);
      socket_ = Socket(socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (connect(socket_.fd(), each->ai_addr, each->ai_addrlen) != 0 && errno != EINPROGRESS) {
        why = std::strerror(errno);
        continue;
      }
      int error = 0;
      socklen_t size = sizeof(error);
      if (!ready(POLLOUT, soon)) {
        why = "no answer";
        continue;
      }
      getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) {
        why = std::strerror(error);
        continue;
      }
      const int on = 1;
      setsockopt(socket_.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      setsockopt(socket_.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
      std::string seen(answer_magic.size(), '\0'), refusal;
      if (!put(greeting_of(member()), soon) || !get_bytes(seen.data(), seen.size(), soon) ||
          seen != answer_magic || !get(refusal, soon)) {
        why = "somebody answers there who is no rank 0 of tutti";
        continue;
      }
      if (refusal.empty()) return true;
      why = "turned away: " + refusal;
      if (only_one)
        tutti::fail<DistributedError>("rendezvous at {}: rank {} was turned away: {}", where(),
                                      member().rank, refusal);
    }
    return false;
  }

  bool ready(short events, Clock::time_point deadline) {
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

  bool put(const std::string& text, Clock::time_point deadline) {
    for (std::size_t sent = 0; sent < text.size();) {
      if (socket_.fd() < 0 || !ready(POLLOUT, deadline)) return false;
      const ssize_t n = send(socket_.fd(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (n > 0) sent += static_cast<std::size_t>(n);
    }
    return true;
  }

  bool get_bytes(char* to, std::size_t size, Clock::time_point deadline) {
    for (std::size_t got = 0; got < size;) {
      if (socket_.fd() < 0 || !ready(POLLIN, deadline)) return false;
      const ssize_t n = recv(socket_.fd(), to + got, size - got, 0);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (n > 0) got += static_cast<std::size_t>(n);
    }
    return true;
  }

  bool get(std::string& message, Clock::time_point deadline) {
    std::uint32_t size = 0;
    if (!get_bytes(reinterpret_cast<char*>(&size), sizeof(size), deadline) || size > longest_answer)
      return false;
    message.resize(size);
    return get_bytes(message.data(), size, deadline);
  }

  std::string host_;
  int port_ = 0;
  std::mutex mutex_;
  Socket socket_;
};

}  // namespace

std::shared_ptr<Store> serve_tcp(const std::string& host, int port, const Member& member) {
  return std::make_shared<Server>(host, port, member);
}

std::shared_ptr<Store> connect_tcp(const std::vector<std::string>& hosts, int port,
                                   const Member& member) {
  return std::make_shared<Client>(hosts, port, member);
}

}  // namespace tutti::distributed::rendezvous
