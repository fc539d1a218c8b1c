// What strangers, other runs and faulty ranks can do to a rendezvous: nothing but be turned away,
// or fail the run with a text that says why. The tests talk to rank 0 over raw connections, and to
// ranks as a false rank 0.
#include "messages.h"
#include "rendezvous_case.h"

#include <tutti/core/error.h>
#include <tutti/distributed/backends/nccl/report.h>
#include <tutti/distributed/broadcast_text.h>
#include <tutti/distributed/launch/launch.h>
#include <tutti/distributed/launch/rendezvous/messages.h>
#include <tutti/distributed/launch/rendezvous/secret.h>
#include <tutti/distributed/launch/rendezvous/socket.h>
#include <tutti/distributed/launch/rendezvous/tls.h>
#include <tutti/distributed/process_group.h>

#include <gtest/gtest.h>

#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <random>
#include <sstream>

namespace tutti {
namespace {

using namespace distributed;
using namespace distributed::rendezvous;
using namespace std::chrono_literals;
using test::connect_to_rank_0;
using test::expect_contains;
using test::free_port;
using test::message_of;
using test::Process;
using test::Rank;
using test::TemporaryFile;

using Side = TlsStream::Side;
using State = TlsStream::State;
constexpr const char* secret = "a secret of the tests, 32 bytes.";

// Sends all bytes, or as many as the other end takes.
void send_all(int fd, const std::string& bytes) {
  EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

// Receives `count` bytes; fewer where the connection ends or nothing comes for a while.
std::string receive(int fd, std::size_t count, std::chrono::milliseconds patience = 15s) {
  std::string bytes;
  while (bytes.size() < count) {
    pollfd polled{fd, POLLIN, 0};
    if (poll(&polled, 1, static_cast<int>(patience.count())) != 1) break;
    char buffer[4096];
    const ssize_t n = recv(fd, buffer, std::min(sizeof(buffer), count - bytes.size()), 0);
    if (n <= 0) break;
    bytes.append(buffer, static_cast<std::size_t>(n));
  }
  return bytes;
}

// Receives what comes until the other end hangs up, which it must do soon.
std::string receive_until_hang_up(int fd) {
  const std::string bytes = receive(fd, 1 << 20);
  pollfd polled{fd, POLLIN, 0};
  char byte = 0;
  EXPECT_EQ(poll(&polled, 1, 0), 1) << "not hung up on";
  EXPECT_LE(recv(fd, &byte, 1, MSG_DONTWAIT), 0);
  return bytes;
}

// Receives what has come, at least one byte; nothing where the connection ends.
std::string receive_some(int fd) {
  const std::string first = receive(fd, 1);
  return first + receive(fd, 1 << 20, 0ms);
}

// One end of a raw connection that speaks TLS.
struct RawTls {
  RawTls(int socket, Side side, const std::string& run_id = "run 1", const char* with = secret)
      : fd(socket), key(with, run_id), tls(key, side) {
    std::string output;
    state = side == Side::client ? tls.take({}, input, output) : State::open;
    for (;;) {
      sent += output;
      if (!output.empty()) send_all(fd, std::exchange(output, {}));
      if (tls.is_proved() || state != State::open) return;
      const std::string received = receive_some(fd);
      if (received.empty()) return;
      state = tls.take(received, input, output);
    }
  }
  ~RawTls() { close(fd); }
  RawTls(const RawTls&) = delete;
  RawTls& operator=(const RawTls&) = delete;

  // Returns what is to be sent for a plain text.
  std::string encrypted(const std::string& plain) {
    std::string output;
    tls.put(plain, output);
    return output;
  }
  void tell(const Message& message) {
    const std::string output = encrypted(framed(message));
    sent += output;
    send_all(fd, output);
  }
  Message next_message() {
    Message message;
    std::string output;
    while (take_message(input, max_reply_bytes, message) == ReadResult::incomplete) {
      const std::string received = receive_some(fd);
      if (received.empty()) return {"nothing came"};
      EXPECT_EQ(tls.take(received, input, output), State::open);
    }
    return message;
  }

  int fd;
  TlsKey key;
  TlsStream tls;
  State state;
  std::string input, sent;
};

// A connection to rank 0 that has said who it is.
struct RawRank : RawTls {
  RawRank(const std::string& port, int rank, int size, const std::string& run_id = "run 1")
      : RawTls(connect_to_rank_0(port), Side::client, run_id) {
    if (!tls.is_proved()) return;
    tell(encode(Hello{rank, size}));
    Reply reply;
    EXPECT_TRUE(decode(next_message(), reply));
    refusal = reply.error;
  }
  Reply ask(const Request& request) {
    tell(encode(request));
    Reply reply;
    EXPECT_TRUE(decode(next_message(), reply));
    return reply;
  }
  std::string refusal = "not proved";
};

// Rank 0 of a run of `size` ranks in this process.
struct ServerCase {
  explicit ServerCase(int size, std::chrono::milliseconds timeout = 20s)
      : store(serve_tcp({"127.0.0.1"}, 0, {0, size, "run 1", timeout, secret})),
        port(store->where().substr(store->where().rfind(':') + 1)) {}
  std::string failure() const {
    for (int i = 0; i < 500; ++i) {
      if (const auto why = store->failure()) return why->what;
      std::this_thread::sleep_for(10ms);
    }
    return "no failure";
  }
  std::shared_ptr<Store> store;
  std::string port;
};

// ---- strangers

TEST(RendezvousSecurity, StrangersAreTurnedAwayLearnNothingAndDisturbNobody) {
  const std::string port = free_port(), at = "127.0.0.1:" + port;
  Process zero = Rank{at, 0, 2, "run 1", 20s, false, secret}.start();
  const int silent = connect_to_rank_0(port);
  const TlsKey key(secret, "run 1");
  std::string none, hello, without_end = std::string("\x16\x03\x01\x40\x00", 5);
  TlsStream(key, Side::client).take({}, none, hello);
  for (const std::string& text :
       {std::string("GET / HTTP/1.0\r\n\r\n"), without_end + std::string(5000, 'x'),
        hello + std::string(5000, 'x'), hello + hello, hello.substr(0, hello.size() - 1) + "x"}) {
    const int fd = connect_to_rank_0(port);
    send_all(fd, text);
    const std::string answer = receive_until_hang_up(fd);
    EXPECT_EQ(answer.find("run 1"), std::string::npos);
    EXPECT_EQ(answer.find(secret), std::string::npos);
    // TLS's first answer, of which a key for OpenSSL 3.5's post-quantum exchange takes 1,120 bytes.
    EXPECT_LE(answer.size(), 1500u);
    close(fd);
  }
  Process one = Rank{at, 1, 2, "run 1", 20s, false, secret}.start();
  for (Process* rank : {&one, &zero}) {
    EXPECT_EQ(rank->line(), "met: [the name of 0] [the name of 1]");
    EXPECT_EQ(rank->exit_code(), 0);
  }
  close(silent);
}

TEST(RendezvousSecurity, AnotherSecretOrRunIdIsRefusedAndNotToldTheRightOne) {
  const std::string port = free_port(), at = "127.0.0.1:" + port;
  Process zero = Rank{at, 0, 2, "run 1", 20s, false, secret}.start();
  for (const Rank& other : {Rank{at, 1, 2, "run 0", 20s, false, secret},
                            Rank{at, 1, 2, "run 1", 20s, false, "another secret of 24 byt"}}) {
    const std::string line = other.start().line();
    expect_contains(line, {"error: rendezvous at " + at + ": rank 1 was turned away",
                           "its secret or its run id is not that of this process",
                           "run id '" + other.run_id + "'"});
    if (other.run_id != "run 1") {
      EXPECT_EQ(line.find("run 1"), std::string::npos);
    }
    EXPECT_EQ(line.find("secret of"), std::string::npos) << line;
  }
  Process one = Rank{at, 1, 2, "run 1", 20s, false, secret}.start();
  EXPECT_EQ(one.line(), "met: [the name of 0] [the name of 1]");
  EXPECT_EQ(zero.line(), "met: [the name of 0] [the name of 1]");
}

TEST(RendezvousSecurity, ARecordedGreetingProvesNothingTheNextTime) {
  const ServerCase server(3);
  const RawRank first(server.port, 1, 3);
  EXPECT_EQ(first.refusal, "");
  const int fd = connect_to_rank_0(server.port);
  send_all(fd, first.sent);
  receive_until_hang_up(fd);
  close(fd);
  EXPECT_FALSE(server.store->failure());
}

TEST(RendezvousSecurity, AnAlteredGreetingProvesNothing) {
  const ServerCase server(3);
  for (const std::size_t at : {0u, 3u, 40u, 70u, 90u}) {  // of the last bytes of the handshake
    const int fd = connect_to_rank_0(server.port);
    const TlsKey key(secret, "run 1");
    TlsStream tls(key, Side::client);
    std::string none, output;
    tls.take({}, none, output);
    send_all(fd, std::exchange(output, {}));
    tls.take(receive_some(fd), none, output);
    ASSERT_TRUE(tls.is_proved());
    tls.put(framed(encode(Hello{1, 3})), output);
    ASSERT_GT(output.size(), at);
    output[at] ^= 3;
    send_all(fd, output);
    receive_until_hang_up(fd);
    close(fd);
  }
  EXPECT_FALSE(server.store->failure());
  EXPECT_EQ(RawRank(server.port, 1, 3).refusal, "");
}

TEST(RendezvousSecurity, ARankThatHasProvedItselfIsToldWhyItIsRefused) {
  const ServerCase server(3);
  const RawRank one(server.port, 1, 3);
  EXPECT_EQ(one.refusal, "");
  expect_contains(RawRank(server.port, 1, 3).refusal,
                  {"another process has already come as rank 1"});
  expect_contains(RawRank(server.port, 2, 4).refusal,
                  {"rank 0 was started for 3 ranks, this one for 4"});
  expect_contains(RawRank(server.port, 7, 3).refusal, {"rank 7 is none of the ranks 1 to 2"});
  expect_contains(RawRank(server.port, 0, 3).refusal, {"rank 0 is none of the ranks 1 to 2"});
  EXPECT_EQ(RawRank(server.port, 1, 3, "run 0").state, State::refused);
  EXPECT_FALSE(server.store->failure());
}

TEST(RendezvousSecurity, ARunThatWasGivenNoIdGetsOneFromRankZero) {
  const auto zero = serve_tcp({"127.0.0.1"}, 0, {0, 2, "", 20s, secret});
  const int port = std::stoi(zero->where().substr(zero->where().rfind(':') + 1));
  const auto one = connect_tcp({"127.0.0.1"}, port, {1, 2, "", 20s, secret});
  EXPECT_NE(zero->member().run_id, "");
  EXPECT_EQ(one->member().run_id, zero->member().run_id);
}

// Rank 1 hangs up when rank 0 takes too long to answer, and connects again.
TEST(RendezvousSecurity, ARankThatHangsUpBeforeItsFirstRequestMayConnectAgain) {
  const ServerCase server(2);
  for (int i = 0; i < 3; ++i) {
    const RawRank rank(server.port, 1, 2);
    EXPECT_EQ(rank.refusal, "");
  }
  RawRank rank(server.port, 1, 2);
  EXPECT_EQ(rank.ask({Request::Operation::put, "a", "1"}).values, (Values{{"a", "1"}}));
  EXPECT_FALSE(server.store->failure());
}

// ---- a false rank 0

TEST(RendezvousSecurity, AServerThatDoesNotKnowTheSecretIsNotRankZero) {
  const test::Listener liar;
  const std::string at = "127.0.0.1:" + std::to_string(liar.port);
  const Process one = Rank{at, 1, 2, "run 1", 2500ms, false, secret}.start();
  // It sends back what it gets until rank 1 has given up, which may be in the middle of an attempt.
  int attempts = 0;
  for (pollfd ends[] = {{one.output(), POLLIN, 0}, {liar.fd, POLLIN, 0}};
       poll(ends, 2, 15000) > 0 && !ends[0].revents;) {
    const int guest = accept(liar.fd, nullptr, nullptr);
    const std::string hello = receive_some(guest);
    EXPECT_EQ(hello.find("run 1"), std::string::npos);
    EXPECT_EQ(hello.find(secret), std::string::npos);
    if (!hello.empty()) ++attempts, send(guest, hello.data(), hello.size(), MSG_NOSIGNAL);
    close(guest);
  }
  EXPECT_GT(attempts, 0);
  expect_contains(one.line(), {"timeout: rendezvous: rank 1 could not reach rank 0 at " + at,
                               "what answers there is no rank 0 of tutti"});
  // One that speaks TLS with another key. It has a port of its own, because the last attempt of
  // rank 1 may wait at the other.
  const test::Listener speaker;
  const Process other =
      Rank{"127.0.0.1:" + std::to_string(speaker.port), 1, 2, "run 1", 20s, false, secret}.start();
  EXPECT_EQ(RawTls(accept(speaker.fd, nullptr, nullptr), Side::server, "run 1",
                   "another secret of 24 byt")
                .state,
            State::broken);
  expect_contains(other.line(), {"error: ", "its secret or its run id is not that"});
}

TEST(RendezvousSecurity, AMessageThatClaimsToBeHugeIsNotWaitedFor) {
  const test::Listener liar;
  Process one =
      Rank{"127.0.0.1:" + std::to_string(liar.port), 1, 2, "run 1", 3s, false, secret}.start();
  {
    RawTls guest(accept(liar.fd, nullptr, nullptr), Side::server);
    ASSERT_TRUE(guest.tls.is_proved());
    Hello hello;
    EXPECT_TRUE(decode(guest.next_message(), hello));
    EXPECT_EQ(hello.rank, 1);
    send_all(guest.fd, guest.encrypted("\xff\xff\xff\xff"));
    EXPECT_EQ(receive_until_hang_up(guest.fd), "");
  }
  one.signal(SIGKILL);
  one.exit_code();
  rusage used = {};
  getrusage(RUSAGE_CHILDREN, &used);
  EXPECT_LT(used.ru_maxrss, 2'000'000);  // KiB: it did not allocate the 4 GiB that were announced
}

// ---- messages after the greeting

TEST(RendezvousSecurity, WhatAThirdPartySeesIsEncrypted) {
  const ServerCase server(2);
  RawRank rank(server.port, 1, 2);
  rank.ask({Request::Operation::set, "the name of a layer", "the value of a key"});
  for (const char* text : {"the name of a layer", "the value of a key", "run 1", secret})
    EXPECT_EQ(rank.sent.find(text), std::string::npos) << text;
}

TEST(RendezvousSecurity, AnAlteredOrRepeatedMessageFailsTheRunByName) {
  for (const bool repeated : {true, false}) {
    const ServerCase server(2);
    RawRank rank(server.port, 1, 2);
    std::string bytes = rank.encrypted(framed(encode(Request{Request::Operation::set, "a", "1"})));
    if (repeated) send_all(rank.fd, bytes), rank.next_message();
    else bytes[bytes.size() / 2] ^= 1;
    send_all(rank.fd, bytes);
    expect_contains(server.failure(),
                    {"the connection of rank 1 (on 127.0.0.1)", "altered on its way or repeated"});
    EXPECT_EQ(server.store->list("a").size(), repeated ? 1u : 0u);
  }
}

TEST(RendezvousSecurity, RequestsThatAreNoneFailTheRun) {
  const Message good = encode(Request{Request::Operation::put, "a", "1"});
  std::vector<std::string> frames;
  for (const Message& none :
       {Message{"?", "a", "1"}, Message{"", "a", "1"}, Message{"pp", "a", "1"}, Message{"p", "a"},
        Message{"p", "a", "1", "x"}, Message()})
    frames.push_back(framed(none));
  frames.push_back(framed(good));
  frames.back()[0] = static_cast<char>(frames.back()[0] - 1);  // its last text is torn
  for (const std::string& frame : frames) {
    const ServerCase server(2);
    RawRank rank(server.port, 1, 2);
    send_all(rank.fd, rank.encrypted(frame));
    expect_contains(server.failure(), {"the connection of rank 1", "is no request"});
  }
}

TEST(RendezvousSecurity, RepliesThatAreNoneAreFoundOut) {
  Reply reply;
  Message message = encode(Reply{.values = {{"a", "1"}, {"b", ""}}});
  ASSERT_TRUE(decode(message, reply));
  EXPECT_EQ(reply.values, (Values{{"a", "1"}, {"b", ""}}));
  for (; !message.empty(); message.pop_back())
    EXPECT_EQ(decode(message, reply), message.size() % 2 == 1);
  EXPECT_FALSE(decode(message, reply));
}

// ---- limits

TEST(RendezvousSecurity, SilentGuestsMakeRoomForRanks) {
  const ServerCase server(2);
  std::vector<int> guests;
  for (int i = 0; i < 60; ++i) guests.push_back(connect_to_rank_0(server.port));
  const auto began = Clock::now();
  const auto one = connect_tcp({"127.0.0.1"}, std::stoi(server.port), {1, 2, "run 1", 20s, secret});
  EXPECT_LT(Clock::now() - began, 15s);
  EXPECT_EQ(one->put("a", "1"), "1");
  for (const int fd : guests) close(fd);
}

std::size_t resident_bytes() {
  std::size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

double own_processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// AddressSanitizer keeps freed memory for a while; 256 MB are its default.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t quarantine_bytes = 300'000'000;
#else
constexpr std::size_t quarantine_bytes = 0;
#endif

TEST(RendezvousSecurity, RepliesThatNobodyReadsDoNotPileUp) {
  const ServerCase server(2);
  for (int i = 0; i < 4; ++i)
    server.store->set(fmt::format("key {}", i), std::string(30'000, static_cast<char>('a' + i)));
  RawRank rank(server.port, 1, 2);
  const std::size_t before = resident_bytes();
  std::string pending;
  std::size_t sent = 0, requests = 0;
  for (const auto end = Clock::now() + 2s; Clock::now() < end && requests < 100'000;) {
    if (pending.empty()) {
      pending = rank.encrypted(framed(encode(Request{Request::Operation::list, "key"})));
      ++requests;
    }
    const ssize_t n = send(rank.fd, pending.data(), pending.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) pending.erase(0, static_cast<std::size_t>(n)), sent += static_cast<std::size_t>(n);
    else std::this_thread::sleep_for(1ms);
  }
  EXPECT_GT(requests, 1000u);  // replies of more than 100 MB
  EXPECT_LT(resident_bytes(), before + 8'000'000 + quarantine_bytes);
  const double used = own_processor_seconds();
  std::this_thread::sleep_for(1s);
  EXPECT_LT(own_processor_seconds() - used, 0.3) << "rank 0 does not wait";
  // The others are served meanwhile, and this rank still gets all replies in order.
  EXPECT_EQ(server.store->put("other", "1"), "1");
  Reply reply;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(decode(rank.next_message(), reply));
    ASSERT_EQ(reply.values, server.store->list("key"));
  }
  EXPECT_FALSE(server.store->failure());
}

TEST(RendezvousSecurity, TheTableHasLimits) {
  const ServerCase server(2);
  RawRank rank(server.port, 1, 2);
  expect_contains(message_of<ValueError>([&] { server.store->set(std::string(2000, 'k'), ""); }),
                  {"a key of at most 1024 bytes, got 2000"});
  expect_contains(rank.ask({Request::Operation::put, std::string(2000, 'k'), ""}).error,
                  {"a key of at most 1024 bytes, got 2000"});
  expect_contains(message_of<ValueError>(
                      [&] { server.store->set("k", std::string(max_value_bytes + 1, 'v')); }),
                  {"a value of at most 262144 bytes for 'k', got 262145"});
  Table table;
  const std::string large(max_value_bytes, 'v');
  const auto fill = [&] {
    for (int i = 0; i < 1000; ++i)
      table.apply({Request::Operation::set, fmt::format("k{}", i), large});
  };
  expect_contains(message_of<DistributedError>(fill), {"the store is full: 'k255'"});
  table.apply({Request::Operation::set, "k254", ""});  // makes room
  table.apply({Request::Operation::set, "k255", large});
  EXPECT_EQ(table.apply({Request::Operation::list, ""}).size(), 256u);
}

// Returns the seconds of processor time that a process has used.
double processor_seconds(pid_t pid) {
  std::string word;
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  double ticks = 0;
  for (int field = 1; field <= 15 && stat >> word; ++field)
    if (field >= 14) ticks += std::stod(word);
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Returns how often the threads of a process, except its first one, have waited for something.
long waits_of_threads(pid_t pid) {
  long waits = 0;
  for (const auto& thread :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid))) {
    if (thread.path().filename() == std::to_string(pid)) continue;
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("voluntary_ctxt_switches:")) waits += std::stol(line.substr(24));
  }
  return waits;
}

TEST(RendezvousSecurity, WithoutDescriptorsAcceptPausesAndRecovers) {
  const std::string port = free_port(), at = "127.0.0.1:" + port;
  Process zero = Rank{at, 0, 2, "run 1", 60s, false, secret}.start();
  std::vector<int> guests = {connect_to_rank_0(port)};
  // Once rank 0 has answered, it needs no further descriptor for itself.
  const TlsKey key(secret, "run 1");
  std::string none, hello;
  TlsStream(key, Side::client).take({}, none, hello);
  send_all(guests[0], hello);
  EXPECT_FALSE(receive_some(guests[0]).empty());
  const auto descriptors = std::distance(
      std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", zero.pid())), {});
  const rlimit few{static_cast<rlim_t>(descriptors + 2), static_cast<rlim_t>(descriptors + 2)};
  ASSERT_EQ(prlimit(zero.pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  for (int i = 0; i < 12; ++i) guests.push_back(connect_to_rank_0(port));
  std::this_thread::sleep_for(200ms);
  const double before = processor_seconds(zero.pid());
  const long waits = waits_of_threads(zero.pid());
  std::this_thread::sleep_for(2s);
  EXPECT_LT(processor_seconds(zero.pid()) - before, 0.4);
  // A thread that spins gets little time on a busy machine, but never waits.
  EXPECT_GT(waits_of_threads(zero.pid()) - waits, 4);
  for (const int fd : guests) close(fd);
  Process one = Rank{at, 1, 2, "run 1", 60s, false, secret}.start();
  for (Process* rank : {&one, &zero}) {
    EXPECT_EQ(rank->line(), "met: [the name of 0] [the name of 1]");
    EXPECT_EQ(rank->exit_code(), 0);
  }
}

TEST(RendezvousSecurity, RankZeroListensOnlyAtTheAddressThatWasAskedFor) {
  const auto accepts = [](const std::string& host, const std::string& port) {
    sockaddr_in address = test::local_address(port);
    EXPECT_EQ(inet_pton(AF_INET, host.c_str(), &address.sin_addr), 1);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool connected =
        connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    return connected;
  };
  const auto port_of = [](const Store& store) {
    return store.where().substr(store.where().rfind(':') + 1);
  };
  const auto one = serve_tcp({"127.0.0.1"}, 0, {0, 2, "run 1", 1s, secret});
  EXPECT_TRUE(accepts("127.0.0.1", port_of(*one)));
  EXPECT_FALSE(accepts("127.0.0.2", port_of(*one)));
  const auto other = serve_tcp({"127.0.0.2"}, 0, {0, 2, "run 1", 1s, secret});
  EXPECT_TRUE(accepts("127.0.0.2", port_of(*other)));
  EXPECT_FALSE(accepts("127.0.0.1", port_of(*other)));
  // An address of another host, such as that of a service, is forwarded to any of this host.
  const auto any = serve_tcp({"192.0.2.1"}, 0, {0, 2, "run 1", 1s, secret});
  EXPECT_TRUE(accepts("127.0.0.1", port_of(*any)));
  expect_contains(
      message_of<DistributedError>([] {
        serve_tcp({"192.0.2.1"}, 0, {0, 2, "run 1", 1s});
      }),
      {"rank 0 cannot listen at '192.0.2.1'", "MASTER_ADDR", "TUTTI_RENDEZVOUS_SECRET_FILE"});
}

// /etc/hosts may name an address twice, and two network interfaces may have the same one.
TEST(RendezvousSecurity, AnAddressThatIsNamedTwiceIsListenedAtOnce) {
  const Listeners listeners = listen_on({"127.0.0.1", "127.0.0.2", "127.0.0.1"}, 0, false);
  EXPECT_EQ(listeners.sockets.size(), 2u);
}

// ---- secrets

TEST(RendezvousSecret, RanksOfOneHostNeedNoneAndLeaveNoFile) {
  const int port = std::stoi(free_port());
  const std::string path = path_of_host_secret("run 1", "127.0.0.1", port);
  {
    // A rank 0 that was killed has left its secret.
    HostSecret old(path);
    old.release();
  }
  const std::string at = fmt::format("127.0.0.1:{}", port);
  Process one = Rank{at, 1, 2}.start();
  std::this_thread::sleep_for(300ms);  // rank 1 has read the old secret
  Process zero = Rank{at, 0, 2}.start();
  for (Process* rank : {&one, &zero}) {
    EXPECT_EQ(rank->line(), "met: [the name of 0] [the name of 1]");
    EXPECT_EQ(rank->exit_code(), 0);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

// Rank 1 has read the secret of a killed rank 0 when the next rank 0, which has not written its own
// yet, begins to listen.
TEST(RendezvousSecret, ARankThatWasRefusedWithAStaleSecretReadsTheNewOne) {
  std::optional<test::Listener> next(std::in_place);
  const std::string path = path_of_host_secret("run 1", "127.0.0.1", next->port);
  const std::string at = fmt::format("127.0.0.1:{}", next->port);
  HostSecret stale(path);
  stale.release();
  Process one = Rank{at, 1, 2}.start();
  const int guest = accept(next->fd, nullptr, nullptr);
  const TlsKey key(random_secret(), "run 1");
  TlsStream tls(key, Side::server);
  std::string input, output;
  EXPECT_EQ(tls.take(receive_some(guest), input, output), State::broken);
  HostSecret replaced(path);
  replaced.release();
  send_all(guest, output);
  receive_until_hang_up(guest);  // who hangs up first keeps the port for a while
  close(guest);
  next.reset();
  Process zero = Rank{at, 0, 2}.start();
  for (Process* rank : {&one, &zero}) {
    EXPECT_EQ(rank->line(), "met: [the name of 0] [the name of 1]");
    EXPECT_EQ(rank->exit_code(), 0);
  }
}

TEST(RendezvousSecret, AKilledRunDoesNotDisturbTheNextAttemptAtTheSamePort) {
  const std::string at = "127.0.0.1:" + free_port();
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::vector<Process> ranks;
    for (const int rank : {0, 1, 2}) ranks.push_back(Rank{at, rank, 3, "run 1", 20s, true}.start());
    for (Process& rank : ranks) expect_contains(rank.line(), {"met: "});
    for (Process& rank : ranks) rank.signal(SIGKILL);
    // torchrun starts the next attempt when it has seen the processes of the last one end.
    for (Process& rank : ranks) rank.exit_code();
  }
}

TEST(RendezvousSecret, RunsAtTheSamePortOfDifferentAddressesHaveTheirOwn) {
  const int port = std::stoi(free_port());
  const std::string hosts[] = {"127.0.0.1", "127.0.0.2"};
  std::vector<std::shared_ptr<Store>> zeros;
  for (const std::string& host : hosts) {
    zeros.push_back(serve_tcp({host}, port, {0, 2, "run 1", 5s}));
    zeros.back()->set("host", host);
  }
  for (const std::string& host : hosts)
    EXPECT_EQ(connect_tcp({host}, port, {1, 2, "run 1", 5s})->list("host").at("host"), host);
}

TEST(RendezvousSecret, AFileThatHasReplacedTheOwnIsNotRemoved) {
  const std::string path = path_of_host_secret("run 1", "127.0.0.1", std::stoi(free_port()));
  HostSecret first(path);
  const HostSecret second(path);
  first.remove();
  EXPECT_EQ(read_host_secret(path), second.secret());
}

TEST(RendezvousSecret, TheFileIsForThisUserOnly) {
  const int port = std::stoi(free_port());
  const std::string path = path_of_host_secret("run 1", "127.0.0.1", port);
  const auto zero = serve_tcp({"127.0.0.1"}, port, {0, 2, "run 1", 20s});
  struct stat file = {}, folder = {};
  ASSERT_EQ(lstat(path.c_str(), &file), 0);
  ASSERT_EQ(lstat(std::filesystem::path(path).parent_path().c_str(), &folder), 0);
  EXPECT_EQ(file.st_mode, static_cast<mode_t>(S_IFREG | 0600));
  EXPECT_EQ(folder.st_mode & 0777, 0700u);
  EXPECT_EQ(read_host_secret(path)->size(), 32u);
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  expect_contains(message_of<DistributedError>([&] { read_host_secret(path); }),
                  {"to give rights to this user only", "its mode is 0644"});
}

TEST(RendezvousSecret, RanksOfSeveralHostsAreToldToShareOne) {
  expect_contains(Rank{"192.0.2.1:29500", 1, 2}.start().line(),
                  {"error: rendezvous at 192.0.2.1:29500: rank 0 is on another host",
                   "TUTTI_RENDEZVOUS_SECRET_FILE", "openssl rand -hex 32"});
}

TEST(RendezvousSecret, ComesFromTheOptionsOrTheEnvironment) {
  const TemporaryFile file("secret");
  const auto find = [](const std::string& option = {}) {
    return find_secret({.rendezvous_secret = option});
  };
  EXPECT_EQ(find(), "");
  EXPECT_EQ(find(secret), secret);
  expect_contains(message_of<ValueError>([&] { find("short"); }),
                  {"a secret of 16 to 4096 bytes, but WorldOptions::rendezvous_secret has 5"});
  setenv("TUTTI_RENDEZVOUS_SECRET", "sixteen bytes or more", 1);
  for (const char* call : {"the first call", "a later call, which does not find the variable"}) {
    EXPECT_EQ(find(), "sixteen bytes or more") << call;
    EXPECT_EQ(std::getenv("TUTTI_RENDEZVOUS_SECRET"), nullptr);
  }
  EXPECT_EQ(find(secret), secret);
  setenv("TUTTI_RENDEZVOUS_SECRET", "sixteen bytes or more", 1);
  setenv("TUTTI_RENDEZVOUS_SECRET_FILE", file.path.c_str(), 1);
  expect_contains(message_of<ValueError>([&] { find(); }), {"both set"});
  expect_contains(message_of<DistributedError>([&] { find(); }), {"there is no file " + file.path});
  std::ofstream(file.path) << "from a file, with a newline\n";
  chmod(file.path.c_str(), 0640);
  expect_contains(message_of<DistributedError>([&] { find(); }),
                  {"expected the secret at " + file.path, "its mode is 0640; chmod 600"});
  chmod(file.path.c_str(), 0400);
  EXPECT_EQ(find(), "from a file, with a newline");
  std::filesystem::remove(file.path);
  ASSERT_EQ(mkfifo(file.path.c_str(), 0600), 0);
  expect_contains(message_of<DistributedError>([&] { find(); }), {"be a regular file"});
  unsetenv("TUTTI_RENDEZVOUS_SECRET_FILE");
}

// As Kubernetes mounts one.
TEST(RendezvousSecret, MayBeAFileOfRootThatOnlyAGroupOfThisUserReads) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make such a file";
  const TemporaryFile file("mounted_secret");
  std::ofstream(file.path) << secret;
  chmod(file.path.c_str(), 0440);
  EXPECT_EQ(read_secret_file(file.path), secret);
  ASSERT_EQ(chown(file.path.c_str(), 0, 54321), 0);
  EXPECT_THROW(read_secret_file(file.path), DistributedError);
}

// ---- values that no rank of tutti has written

TEST(MalformedValues, FailuresAreReadWithChecks) {
  for (const std::string& value :
       {std::string(), std::string("t"), std::string("no newline"), std::string("x\n"),
        std::string("\n"), std::string(" ") + std::string(100'000, 'a') + "\n"}) {
    const auto table = std::make_shared<SharedTable>();
    const auto zero = in_memory(table, {0, 2});
    zero->set("failure", value);
    expect_contains(zero->failure().value().what,
                    {fmt::format("a failure of {} bytes that no rank", value.size())});
    EXPECT_THROW(zero->gather("names", "", {}), DistributedError);
  }
  const Failure long_one{.at = std::string(100'000, 'a'), .what = std::string(500'000, 'w')};
  EXPECT_LE(encode_failure(long_one).size(), max_value_bytes);
  EXPECT_EQ(decode_failure(encode_failure(long_one)).what, std::string(8192, 'w'));
  const auto zero = in_memory(std::make_shared<SharedTable>(), {0, 2});
  zero->set("failures are counted", "3");  // another key with the same beginning
  EXPECT_FALSE(zero->failure());
}

TEST(MalformedValues, AnAddressThatIsNoneIsNotConnectedTo) {
  const std::string secret = "0123456789abcdef", host = "127.0.0.1";
  for (const std::string& text :
       {std::string(), std::string("x y z"), framed({"29500"}), framed({"x", secret, host}),
        framed({"0", secret, host}), framed({"99999", secret, host}),
        framed({"29500", "short", host}), framed({"29500", secret, host}) + "x"})
    run_ranks(2, [&](const ProcessGroup& group) {
      if (group.rank() == 0) {
        broadcast_text(group, text, "rendezvous");
        return;
      }
      expect_contains(message_of<DistributedError>([&] { rendezvous::over(group, 1s); }),
                      {"expected rank 0 to broadcast a port, a secret and addresses"});
    });
}

TEST(MalformedValues, ReportsAboutCollectivesAreReadWithChecks) {
  nccl::Report report{.last_issued = 8, .calls = 1};
  report.fingerprints[0] = {.sequence = 8, .count = 3, .operation = Operation::all_reduce};
  const nccl::Reports both = {{"world", report}, {"world.1:0", nccl::Report{}}};
  const std::string good = encode(both);
  const auto reports = nccl::decode_reports(good, 1);
  EXPECT_EQ(reports.at("world").last_issued, 8);
  EXPECT_TRUE(reports.at("world").fingerprints[0] == report.fingerprints[0]);
  EXPECT_EQ(reports.size(), 2u);
  const std::size_t one = sizeof("world") + sizeof(report);
  for (const std::size_t size :
       {std::size_t{1}, sizeof("world"), one - 1, one + 3, good.size() - 1})
    expect_contains(
        message_of<DistributedError>([&] { nccl::decode_reports(good.substr(0, size), 1); }),
        {"the report of rank 1", "is malformed"});
  const auto refuses = [&](auto change) {
    nccl::Report other = report;
    change(other, other.fingerprints[0]);
    EXPECT_THROW(nccl::decode_reports(encode(nccl::Reports{{"world", other}}), 1),
                 DistributedError);
  };
  refuses([](nccl::Report& r, Fingerprint&) { r.calls = -1; });
  refuses([](nccl::Report& r, Fingerprint&) { r.last_issued = -1; });
  refuses([](nccl::Report& r, Fingerprint&) { r.released = 2; });
  refuses([](nccl::Report&, Fingerprint& f) { f.operation = static_cast<Operation>(77); });
  refuses([](nccl::Report&, Fingerprint& f) { f.op = 99; });
  refuses([](nccl::Report&, Fingerprint& f) { f.dtype = 99; });
  refuses([](nccl::Report&, Fingerprint& f) { f.sequence = -5; });
  refuses([](nccl::Report&, Fingerprint& f) { std::memset(f.name, 'x', sizeof(f.name)); });
  refuses([](nccl::Report&, Fingerprint& f) { f.rank = Dims::max_rank + 1; });
}

TEST(PublishedReports, ThoseWithCallsUnderWayArePublishedFirst) {
  nccl::Reports reports;
  for (int i = 0; i < 1000; ++i)
    reports[fmt::format("world.{:03}:0", i)] =
        nccl::Report{.last_issued = 1, .calls = i % 10 == 7 ? 1 : 0};
  const nccl::Reports chosen = truncated_to(reports, rendezvous::max_value_bytes);
  const std::string text = encode(chosen);
  EXPECT_LE(text.size(), rendezvous::max_value_bytes);
  EXPECT_GT(text.size(), rendezvous::max_value_bytes - 2 * sizeof(nccl::Report));
  for (const auto& [key, report] : reports) {
    EXPECT_TRUE(report.calls == 0 || chosen.contains(key)) << key;
  }
  EXPECT_EQ(truncated_to(reports, 1'000'000'000).size(), reports.size());
  EXPECT_EQ(encode(truncated_to(reports, 0)), "");
}

TEST(MalformedValues, SeatsAreReadWithChecks) {
  const std::string good = encode(nccl::Seat{"node1", 3, -1, {"a", "b"}});
  const nccl::Seat seat = nccl::decode_seat(good, 1);
  EXPECT_EQ(std::tuple(seat.host, seat.local_rank, seat.device), std::tuple("node1", 3, -1));
  EXPECT_EQ(seat.gpus, (std::vector<std::string>{"a", "b"}));
  for (const std::string& none :
       {std::string(), good.substr(0, 20), framed({"node1", "3"}), framed({"node1", "3", "x"})})
    expect_contains(message_of<DistributedError>([&] { nccl::decode_seat(none, 1); }),
                    {fmt::format("GPUs of rank 1, got {} other bytes", none.size())});
}

TEST(Seats, DevicesAreChosenByHostAndNoneTwice) {
  const auto chosen = [](std::vector<nccl::Seat> seats, bool may_share = false) {
    nccl::choose_devices(seats, may_share);
    std::vector<int> devices;
    for (const nccl::Seat& seat : seats)
      devices.insert(devices.end(), {seat.local_rank, seat.device});
    return devices;
  };
  EXPECT_EQ(chosen({{.host = "x", .gpus = {"a", "b"}},
                    {.host = "y", .gpus = {"c", "d"}},
                    {.host = "x", .gpus = {"a", "b"}},
                    {.host = "y", .local_rank = 5, .device = 1, .gpus = {"c", "d"}}}),
            (std::vector{0, 0, 0, 0, 1, 1, 5, 1}));
  // Each process sees one GPU only, its own, as srun --gpus-per-task=1 lets it.
  EXPECT_EQ(chosen({{.host = "x", .gpus = {"a"}}, {.host = "x", .gpus = {"b"}}}),
            (std::vector{0, 0, 1, 0}));
  // The rank whose device is not there says so itself.
  EXPECT_EQ(chosen({{.host = "x", .device = 9, .gpus = {"a", "b"}}}), (std::vector{0, 9}));
  const std::vector<nccl::Seat> twice = {{.host = "x", .gpus = {"a"}},
                                         {.host = "x", .gpus = {"a"}}};
  expect_contains(message_of<DistributedError>([&] { chosen(twice); }),
                  {"ranks 0 and 1 have the same GPU (a)", "TUTTI_NCCL_SHARE_GPU=1"});
  EXPECT_EQ(chosen(twice, true), (std::vector{0, 0, 1, 0}));
}

TEST(MalformedValues, RandomBytesAreNeverTakenForMessages) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const TlsKey key(secret, "run 1");
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random() % 80, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 4 ? random() % 8 : random());
    Request request;
    Reply reply;
    Hello hello;
    Message message;
    std::string input = bytes, output;
    if (take_message(input, 1000, message) == ReadResult::complete)
      decode(message, request), decode(message, reply), decode(message, hello);
    decode_failure(bytes);
    if (i % 50 != 0) continue;
    TlsStream tls(key, i % 100 ? Side::server : Side::client);
    tls.take({}, input, output);
    tls.take(bytes, input, output);
    EXPECT_FALSE(tls.is_proved());
  }
}

}  // namespace
}  // namespace tutti
