// TimedBarrier: a barrier of all processes of MPI_COMM_WORLD that has a deadline and can say who is
// missing. It precedes what blocks in MPI without a deadline: creating communicators and finalising
// (the all-gather in split() does this for subgroups). Rank 0 collects messages from the others and
// answers them. A rank that gives up waiting tells rank 0 and may come again: the latest message of
// a rank counts. A rank that stops right after the barrier has passed it.
#pragma once

#include "transfers.h"

#include <functional>

namespace tutti::distributed::mpi {

class TimedBarrier {
 public:
  enum class Purpose : std::int32_t { start, exit, gave_up };

  /// Tells rank 0 that this process has come and for which purpose. Does not wait.
  explicit TimedBarrier(Purpose purpose);

  /// Waits until all processes have come or the deadline has passed, and calls `in_between` between
  /// two polls. A rank other than 0 waits one second longer, because rank 0 knows the names. At the
  /// deadline the wait begins anew where `lives` says so of the ranks that have not come; to a rank
  /// other than 0 that is rank 0.
  void wait(Deadline deadline, const std::function<void()>& in_between = {},
            const std::function<bool(std::span<const int> ranks)>& lives = {});

  /// After wait(): an empty text where all came for the same purpose, else who did not: "rank 3 did
  /// not come", "rank 1 is exiting instead".
  const std::string& absent() const { return absent_; }
  /// After wait(): whether a rank did not come at all, as opposed to for another purpose.
  bool timed_out() const { return timed_out_; }

 private:
  struct Message {  // to rank 0, or its answer
    Purpose purpose;
    std::int32_t timed_out;
    char text[248];
  };
  void tell(int rank, const Message& message);
  bool poll();
  std::vector<int> missing() const;
  void give_up();
  void collect();
  void decide(const std::string& absent, bool timed_out);

  ControlChannel channel_;
  const Purpose purpose_;
  int rank_ = 0;
  std::vector<std::optional<Purpose>> came_;  // on rank 0, by rank
  bool decided_ = false, timed_out_ = false;
  std::string absent_;
};

}  // namespace tutti::distributed::mpi
