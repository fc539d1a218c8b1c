// Exchange: the messages by which the ranks of a host agree on a collective. Each rank sends one
// message to each other rank of its host: its fingerprint and, where that is small, its data. Every
// receive has room for the largest such message whatever the sender sends, and data is not read
// unless the fingerprints agree. So ranks that disagree all learn both calls, and nothing is
// received into memory of another size.
//
// The fingerprints cost no extra message: a small collective of a group on one host is complete
// with these messages. Every rank computes its result in rank order, hence the same bits as the
// local backend. With n ranks each one sends its whole data n - 1 times, which is the fastest way
// for few ranks or little data (inline_limit() in mpi.h). In a group on several hosts only the
// leader of the host gets the data, and carries it to the other hosts (HostCollective). DataFlow
// describes every collective for both.
#pragma once

#include "../../data_flow.h"
#include "transfers.h"

namespace tutti::distributed::mpi {

/// Messages of up to this many bytes, fingerprint included, go through Open MPI's shared memory at
/// once; by default only those of 4 KiB do, and longer ones ask the receiver first. Measured: 33 kB
/// in 12 us instead of 19 to 46, 8 kB in 4.5 instead of 9.
inline constexpr std::size_t eager_bytes = 36 * 1024;

class Exchange : public PendingMessages {
 public:
  /// The deadline counts from now on.
  Exchange(std::shared_ptr<const HostCommunicators> comms, const Collective& call);
  ~Exchange() override;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  bool poll() override;
  const Collective& call() const override { return call_; }
  const GroupInfo& group() const override { return comms_->info(); }
  Deadline deadline() const override { return deadline_; }
  PendingState pending_state() const override;

  /// Posts all messages and does not wait. Called in the order of the collectives, by one thread.
  /// Where it throws, the destructor keeps the memory of the messages that MPI has already got.
  void post();
  /// Lets the deadline count from now on.
  void restart_deadline() { deadline_ = Deadline::after(call_.options.timeout); }
  /// Waits until all ranks of this host have come to this collective and compares their
  /// fingerprints. Throws, and fails the world, where the ranks disagree.
  void wait_for_agreement(bool patient);
  const DataFlow& flow() const { return flow_; }
  /// Returns whether the messages carry the data too.
  bool has_data() const { return has_data_; }
  /// Returns whether the messages are all that the collective needs.
  bool is_whole() const { return has_data_ && comms_->layout().is_one_host(); }
  /// Computes this rank's output, after wait_for_agreement() and where is_whole().
  void compute() const;
  /// Returns the data that the rank of this index on the host gives, on the leader of the host,
  /// after wait_for_agreement() and where has_data().
  const char* data_of(int index) const;

 private:
  // Returns the place for the message of a rank of this host; what this rank sends lies behind all.
  char* slot_of(int rank) const {
    return memory_.get() + slot_bytes_ * static_cast<std::size_t>(rank);
  }

  std::shared_ptr<const HostCommunicators> comms_;
  Collective call_;
  DataFlow flow_;
  Deadline deadline_;
  int rank_, size_;  // on this host
  bool has_data_ = false;
  std::shared_ptr<char[]> memory_;
  std::size_t slot_bytes_ = 0;         // for the message of one rank
  std::vector<MPI_Request> requests_;  // receives by rank, then sends by rank; null for this rank
  bool complete_ = false;
};

}  // namespace tutti::distributed::mpi
