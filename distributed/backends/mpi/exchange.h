// How the ranks of a group meet at a collective: each sends each other one message, its fingerprint
// and, where that is small, its data. Receives have room for the largest such message whatever the
// sender sends, and data that does not fit the fingerprints is never looked at: so ranks that
// disagree all get both sides of the story and nothing is exchanged with mismatched sizes. The
// fingerprints cost nothing extra: a small collective is this one message, its reduction is
// computed by every rank in rank order, hence the same bits as the local backend. With n ranks that
// is n - 1 messages of the whole data, the fastest way for few ranks or little data: see
// inline_limit() in mpi.h.
#pragma once

#include "runtime.h"

namespace tutti::distributed::mpi {

/// Up to this many, fingerprint included, it goes through Open MPI's shared memory at once; by
/// default only 4 KiB do, and what is longer asks the other side first. Measured: 33 kB in 12 us
/// instead of 19 to 46, 8 kB in 4.5 instead of 9.
inline constexpr std::size_t eager_bytes = 36 * 1024;

class Exchange {
 public:
  /// Posts all messages; does not wait. Called in the order of the collectives, by one thread.
  Exchange(std::shared_ptr<const GroupCommunicator> comm, const Collective& call,
           const Backend::Place& place);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// True when every message has come and gone. Never blocks.
  bool poll();
  const GroupCommunicator& comm() const { return *comm_; }
  std::vector<int> missing() const;  ///< the ranks whose message has not come
  /// Whether the data travelled along.
  bool has_data() const { return has_data_; }
  /// After poll(): see distributed::disagreement.
  std::string disagreement() const;
  /// After poll(), where has_data(): computes this rank's output.
  void compute(const Collective& call) const;

 private:
  const char* from(int rank) const;

  std::shared_ptr<const GroupCommunicator> comm_;
  int rank_, size_;
  bool has_data_;
  Fingerprint mine_;
  std::unique_ptr<char[]> sending_, received_;
  std::size_t slot_ = 0;
  std::vector<MPI_Request> requests_;  // receives by rank, then sends by rank; null for oneself
  std::vector<int> finished_;
  bool complete_ = false;
};

/// Waits until all ranks have come to `call` and compares what they came for. Throws, and breaks
/// the domain, at the deadline and where they disagree. `met` is the latest collective of this
/// group to which all have come.
void meet(Exchange& exchange, const Collective& call, const Backend::Place& place,
          std::atomic<std::int64_t>& met, bool patient,
          std::chrono::steady_clock::time_point deadline);

/// For an exchange that is not complete: breaks the domain, and returns true, at the deadline and
/// where a missing rank has left.
bool give_up(const Exchange& exchange, const Collective& call, const Backend::Place& place,
             const std::atomic<std::int64_t>& met, std::chrono::steady_clock::time_point deadline);

}  // namespace tutti::distributed::mpi
