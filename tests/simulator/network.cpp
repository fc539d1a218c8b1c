#include "network.h"

#include <mpi.h>

#include <cstring>
#include <map>
#include <numeric>

namespace tutti::simulator {
namespace {

constexpr std::size_t eager_bytes = 36 << 10;  // as exchange.h asks Open MPI for

struct Link {
  Time latency, overhead;  // the overhead keeps sender and receiver busy
  double ns_per_byte;
};
constexpr Link in_host = {500, 200, 0.1}, between_hosts = {5000, 500, 0.1};

struct Host {  // the side of a rank
  std::list<std::shared_ptr<Request>> posted;
  std::list<Message> unexpected;
  std::vector<std::function<void()>> on_thaw;
  Time sender_free = 0, receiver_free = 0;
  Traffic traffic;
  std::map<int, std::map<int, Time>> last_arrival;  // by the rank sent to, and by context
  int calls[3] = {0, 0, 0};
};

struct Network {
  Layout layout;
  std::vector<int> host;
  std::vector<Host> ranks;
  std::map<std::string, int> met;
};
Network& network() {
  static auto& one = *new Network;
  return one;
}
Host& side(int rank) { return network().ranks[static_cast<std::size_t>(rank)]; }
int host_of(int rank) { return network().host[static_cast<std::size_t>(rank)]; }

bool fits(const Request& request, const Message& message) {
  return request.context == message.context && request.tag == message.tag &&
         (request.source == MPI_ANY_SOURCE || request.source == message.source);
}

// Returns when a message that leaves now arrives. Only those of one communicator stay in order, as
// MPI promises.
Time arrival(int from, int to, int context, std::size_t bytes, const Link& link) {
  Host& sender = side(from);
  const Time leaves = std::max(now(), sender.sender_free) + link.overhead,
             moving = static_cast<Time>(static_cast<double>(bytes) * link.ns_per_byte);
  sender.sender_free = leaves + moving;
  Time arrives = leaves + moving + link.latency;
  const Fault& fault = network().layout.fault;
  const auto touches = [&](int a, int b) {
    return host_of(a) == host_of(from) && host_of(b) == host_of(to);
  };
  if ((fault.kind == Fault::Kind::delay || fault.kind == Fault::Kind::cut) &&
      (touches(fault.rank, fault.other) || touches(fault.other, fault.rank)) &&
      now() >= fault.begin) {
    const bool over = fault.duration != never && now() >= fault.begin + fault.duration;
    if (fault.duration == never) arrives = never;
    else if (!over && fault.kind == Fault::Kind::delay) arrives += fault.duration;
    else if (!over) arrives = fault.begin + fault.duration + link.latency;
  }
  if (const Time jitter = network().layout.jitter; jitter > 0 && arrives != never)
    arrives += static_cast<Time>(random()() % static_cast<std::uint64_t>(jitter));
  Time& last = sender.last_arrival[to][context];
  return last = std::max(arrives, last);
}

// Calls `what` once the message is there and the receiver has time for it.
void arrive(int from, int to, int context, std::size_t bytes, std::function<void()> what) {
  const Link& link = host_of(from) == host_of(to) ? in_host : between_hosts;
  const Time arrives = arrival(from, to, context, bytes, link);
  if (arrives == never) return;
  at(arrives, [=, what = std::move(what)]() mutable {
    Host& receiver = side(to);
    receiver.receiver_free = std::max(now(), receiver.receiver_free) + link.overhead;
    at(receiver.receiver_free, std::move(what));
  });
}

void when_running(int rank, std::function<void()> what) {
  if (!is_frozen(rank)) return what();
  side(rank).on_thaw.push_back(std::move(what));
}

void finish(Request& request, const Message& message, int rank) {
  request.error = message.bytes > request.bytes ? MPI_ERR_TRUNCATE : MPI_SUCCESS;
  if (const std::size_t bytes = std::min(message.bytes, request.bytes); bytes > 0)
    std::memcpy(request.to, message.data.data(), bytes);
  request.source = message.source;
  request.done = true;
  wake_pollers(rank);
}

// A long message is asked for, and its sender, unless it is stopped, sends the bytes then. They are
// read when the last of them arrives, so that a sender that changes them before is found.
void fulfil(const std::shared_ptr<Request>& request, Message message, int rank) {
  if (!message.sending) return finish(*request, message, rank);
  request->source = message.source;
  const int sender = message.source, context = message.context;
  auto shared = std::make_shared<Message>(std::move(message));
  arrive(rank, sender, context, 0, [=] {
    when_running(sender, [=] {
      arrive(sender, rank, context, shared->bytes, [=] {
        if (has_ended(sender)) return;
        shared->data.assign(shared->at_sender, shared->at_sender + shared->bytes);
        shared->sending->done = true;
        wake_pollers(sender);
        finish(*request, *shared, rank);
      });
    });
  });
}

void deliver(int to, Message message) {
  Host& receiver = side(to);
  for (auto each = receiver.posted.begin(); each != receiver.posted.end(); ++each)
    if (fits(**each, message)) {
      const auto request = *each;
      receiver.posted.erase(each);
      return fulfil(request, std::move(message), to);
    }
  receiver.unexpected.push_back(std::move(message));
  wake_pollers(to);
}

void stop(int rank, Time until) {
  if (until != never)
    at(until, [rank] {
      std::vector<std::function<void()>> actions;
      actions.swap(side(rank).on_thaw);
      for (const auto& action : actions) action();
    });
  freeze(rank, until);
}

}  // namespace

int Layout::ranks() const { return std::accumulate(host_sizes.begin(), host_sizes.end(), 0); }

std::vector<int> Layout::hosts() const {
  std::vector<int> hosts, left = host_sizes;
  while (static_cast<int>(hosts.size()) < ranks())
    for (std::size_t h = 0; h < left.size(); ++h)
      for (int n = in_turns ? std::min(left[h], 1) : left[h]; n > 0; --n, --left[h])
        hosts.push_back(static_cast<int>(h));
  return hosts;
}

void start_network(const Layout& layout) {
  network().layout = layout;
  network().host = layout.hosts();
  network().ranks.resize(static_cast<std::size_t>(layout.ranks()));
  if (layout.fault.kind == Fault::Kind::host)
    at(layout.fault.begin, [] {
      for (int rank = 0; rank < network().layout.ranks(); ++rank)
        if (host_of(rank) == host_of(network().layout.fault.rank)) stop(rank, never);
    });
}

const Layout& layout() { return network().layout; }
Traffic traffic(int rank) { return side(rank).traffic; }
std::size_t peers(int rank) { return side(rank).last_arrival.size(); }
int calls(int rank, Fault::Where where) { return side(rank).calls[where]; }

int enter(const char* call_name, Fault::Where where) {
  const int rank = this_rank();
  if (where != Fault::at_poll) begin_call(call_name);
  const int call = ++side(rank).calls[where];
  const Fault& fault = network().layout.fault;
  if (fault.rank != rank || fault.where != where || fault.call != call) return MPI_SUCCESS;
  const Time until = fault.duration == never ? never : now() + fault.duration;
  switch (fault.kind) {
    case Fault::Kind::die: stop(rank, never); break;
    case Fault::Kind::stop: stop(rank, until); break;
    case Fault::Kind::sleep: wait(nullptr, until, "sleeps"); break;
    case Fault::Kind::error:
    case Fault::Kind::hang:
    case Fault::Kind::broken_device: return MPI_ERR_OTHER;
    default: break;
  }
  return MPI_SUCCESS;
}

std::size_t write_to_disk(std::size_t bytes) {
  Fault& fault = network().layout.fault;
  if (fault.full_disk_of < 0 || host_of(fault.full_disk_of) != host_of(this_rank())) return bytes;
  const auto taken = std::min(static_cast<std::int64_t>(bytes), fault.room);
  fault.room -= taken;
  return static_cast<std::size_t>(taken);
}

void meet(const char* what) {
  int& count = network().met[what];
  const int all = network().layout.ranks();
  if (++count == all) at(now() + 20 * microsecond, [&count] { wake(&count); });
  wait(&count, never, what);
}

std::shared_ptr<Request> send(int to, int context, int tag, const void* from, std::size_t bytes) {
  const int rank = this_rank();
  const auto request = std::make_shared<Request>();
  Traffic& traffic = side(rank).traffic;
  ++traffic.messages;
  traffic.bytes += static_cast<std::int64_t>(bytes);
  traffic.between_hosts += host_of(rank) != host_of(to);
  Message message{.source = rank, .tag = tag, .context = context, .bytes = bytes};
  const char* const data = static_cast<const char*>(from);
  request->done = bytes <= eager_bytes;
  if (request->done) message.data.assign(data, data + bytes);
  else message.at_sender = data, message.sending = request;
  arrive(rank, to, context, request->done ? bytes : 0,
         [to, message = std::move(message)]() mutable { deliver(to, std::move(message)); });
  return request;
}

void receive(const std::shared_ptr<Request>& request) {
  Host& receiver = side(this_rank());
  for (auto each = receiver.unexpected.begin(); each != receiver.unexpected.end(); ++each)
    if (fits(*request, *each)) {
      Message message = std::move(*each);
      receiver.unexpected.erase(each);
      return fulfil(request, std::move(message), this_rank());
    }
  receiver.posted.push_back(request);
}

const Message* find_message(int source, int tag, int context) {
  Request wanted;
  wanted.source = source;
  wanted.tag = tag;
  wanted.context = context;
  for (const Message& each : side(this_rank()).unexpected)
    if (fits(wanted, each)) return &each;
  return nullptr;
}

void cancel(const Request& request) {
  std::erase_if(side(this_rank()).posted, [&](const auto& each) { return each.get() == &request; });
}

}  // namespace tutti::simulator
