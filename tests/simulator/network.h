// The network of the simulator: hosts, links between them, messages with their order, and faults.
// It moves bytes between ranks; mpi.cpp makes MPI's functions of that.
#pragma once

#include "scheduler.h"

#include <list>
#include <memory>
#include <set>
#include <string>

namespace tutti::simulator {

/// What goes wrong. Calls are counted on each rank, those that only poll and the launches on its
/// device apart from the others.
struct Fault {
  enum class Kind { none, die, stop, sleep, error, delay, cut, host, hang, broken_device };
  enum Where { at_call, at_poll, at_launch };
  Kind kind = Kind::none;
  int rank = 0;   ///< Of which rank; of a link or a host that goes, a rank of the host.
  int other = 0;  ///< A rank of the other host of such a link.
  Where where = at_call;
  int call = 0;
  /// Of a link's fault, or of a stop or sleep. A delay makes what is sent meanwhile late by as
  /// much.
  Time begin = 0, duration = never;
  int full_disk_of = -1;  ///< A rank; the disk of its host takes `room` bytes, of all its ranks.
  std::int64_t room = 0;
};

/// A job that is simulated.
struct Layout {
  std::vector<int> host_sizes;  ///< The number of ranks of each host.
  bool in_turns = false;        ///< Rank 1 is on another host than rank 0, and so on.
  Time jitter = 0;              ///< Each message may be late by so much.
  Fault fault = {};
  bool has_devices = false;  ///< Calls travel through lanes, too (devices.h).
  int ranks() const;
  std::vector<int> hosts() const;  ///< By rank.
};

/// What a rank has done so far.
struct Traffic {
  std::int64_t messages = 0, bytes = 0, between_hosts = 0;
};

/// A receive or send under way, or a collective of MPI.
struct Request : std::enable_shared_from_this<Request> {
  virtual ~Request() = default;
  /// Lets a collective go on. Returns whether that changed anything.
  virtual bool advance() { return false; }
  bool done = false;
  int error = 0;
  int source = 0, tag = 0;  // what a receive waits for, then what it got
  int context = 0;
  void* to = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<Request> handle = {};  ///< Keeps it as long as the library has its handle.
};

/// A message of which the receiver knows. A long one stays with its sender until it is received.
struct Message {
  int source = 0, tag = 0, context = 0;
  std::size_t bytes = 0;
  std::vector<char> data = {};
  const char* at_sender = nullptr;
  std::shared_ptr<Request> sending = {};
};

void start_network(const Layout& layout);
const Layout& layout();
Traffic traffic(int rank);
/// To how many other ranks a rank has sent.
std::size_t peers(int rank);

/// Counts a call of this rank and carries out the fault that is due. Returns an error code.
int enter(const char* call, Fault::Where where = Fault::at_call);
int calls(int rank, Fault::Where where);
/// Returns how many of so many bytes the disk of the calling rank takes.
std::size_t write_to_disk(std::size_t bytes);
/// Lasts until every rank is there, as the launcher's own network brings them together.
void meet(const char* what);

/// Send and receive between ranks of the world; contexts keep communicators apart.
std::shared_ptr<Request> send(int to, int context, int tag, const void* from, std::size_t bytes);
void receive(const std::shared_ptr<Request>& request);
/// Returns the first message that fits, if one has arrived.
const Message* find_message(int source, int tag, int context);
void cancel(const Request& request);

}  // namespace tutti::simulator
