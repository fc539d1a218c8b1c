// Messages of MPI under way, and how a thread waits for them: it polls, keeps the deadline through
// World, and gives the core away between two polls. Transfers are messages and MPI collectives
// under way together, with the memory that they use and the ranks that a wait for them is waiting
// for.
#pragma once

#include "communicator.h"

namespace tutti::distributed::mpi {

/// A collective, or a part of one, whose messages have been posted.
class PendingMessages : public PendingCollective {
 public:
  /// Lets MPI make progress. Returns true when all messages have been sent and received. Never
  /// blocks.
  virtual bool poll() = 0;
};

/// Waits until `messages.poll()` returns true. Throws the failure of the world, which this call
/// causes where the deadline passes or a rank departs. A patient wait soon sleeps between polls;
/// any other does so after a while, because several ranks and their communication threads may share
/// few cores.
void wait(PendingMessages& messages, World& world, bool patient);

/// Lets MPI make progress with the requests and returns whether all are done. Throws a
/// DistributedError with the error of a request that has failed.
bool all_done(std::vector<MPI_Request>& requests);

/// Pauses between poll number `polls` of a wait and the next one.
void pause(std::int64_t polls, bool patient);

/// Small messages beside the data of collectives, over one communicator and tag. No receive is left
/// waiting: whoever expects a message asks for it again and again.
class ControlChannel {
 public:
  ControlChannel(MPI_Comm comm, int tag) : comm_(comm), tag_(tag) {}
  /// Leaves what MPI has not sent in memory until the process ends: MPI may still read it.
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  /// Starts to send the beginning of `message`. Does not wait for its receiver, so that a process
  /// that is gone holds nobody up. Returns MPI's error code.
  int send(int rank, std::shared_ptr<void> message, std::size_t bytes);
  /// Returns whether MPI has taken all messages.
  bool is_sent();
  /// Receives the next message of up to `bytes`, if one has arrived, and returns who has sent it.
  std::optional<int> receive(void* message, std::size_t bytes);

 private:
  const MPI_Comm comm_;
  const int tag_;
  std::vector<std::pair<std::shared_ptr<void>, MPI_Request>> sent_;  // what MPI may still read
};

/// Returns uninitialised memory. Large blocks come from the allocator of tensors, which keeps their
/// pages, and a few from 16 KiB on are kept here; the system would take the pages of a freed
/// message back, and fill them anew for the next.
std::shared_ptr<char[]> message_memory(std::size_t bytes);

/// What MPI may read and write on behalf of a collective. It is never freed where a failure leaves
/// messages under way.
using CollectiveMemory = std::vector<std::shared_ptr<const void>>;

class Transfers : public PendingMessages {
 public:
  enum class Tag { result = 1, scatter, gather, calls };
  /// For the last parameter: all ranks had arrived at the collective before.
  static constexpr bool in_transfer = true;

  /// The communicators and the exchange must outlive the object. The exchange has the call and its
  /// deadline.
  Transfers(const HostCommunicators& comms, const PendingMessages& exchange,
            std::shared_ptr<CollectiveMemory> memory, bool is_in_transfer = false)
      : comms_(comms),
        exchange_(exchange),
        memory_(std::move(memory)),
        is_in_transfer_(is_in_transfer) {}
  ~Transfers() override;
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  /// Exchange messages with the rank that has this index on this host or, for calls, as a leader
  /// with that of a host.
  void receive(void* to, std::size_t bytes, std::size_t index, Tag tag);
  void send(const void* from, std::size_t bytes, std::size_t index, Tag tag);
  /// Returns the place for the request of an MPI collective between the owners of a slice.
  MPI_Request& add_between_hosts(std::size_t slice);

  /// Waits until all is done, or the deadline of the exchange has passed. The wait for other hosts
  /// lasts longer, so that the ranks of a host that misses one can name it before.
  void wait(bool patient);

  bool poll() override;
  const Collective& call() const override { return exchange_.call(); }
  const GroupInfo& group() const override { return comms_.info(); }
  Deadline deadline() const override { return deadline_; }
  Clock::time_point patient_until() const override { return patient_until_; }
  PendingState pending_state() const override;

 private:
  MPI_Request& add(int peer);
  int rank_at(std::size_t index, Tag tag) const;
  MPI_Comm comm_of(Tag tag) const {
    return tag == Tag::calls ? comms_.across_hosts() : comms_.host();
  }

  const HostCommunicators& comms_;
  const PendingMessages& exchange_;
  std::shared_ptr<CollectiveMemory> memory_;
  bool is_in_transfer_;
  bool awaits_result_ = false;  // a rank of the own host sends what it has got from others
  Deadline deadline_;
  Clock::time_point patient_until_;
  std::vector<MPI_Request> requests_;
  // By request: the rank of the group on the other side, or ~slice for the owners of a slice.
  std::vector<int> peers_;
};

}  // namespace tutti::distributed::mpi
