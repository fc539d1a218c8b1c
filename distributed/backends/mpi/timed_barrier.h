// TimedBarrier: a barrier of all processes of MPI_COMM_WORLD that has a deadline and can say who is
// missing. It precedes what blocks in MPI without a deadline: creating communicators and finalising
// (the all-gather in split() does this for subgroups). A rank reports to its parent in a binomial
// tree once all ranks below it have, and rank 0's answer comes back down, so that no rank sends
// more than log2(N) messages. Rank 0 alone decides. Before its deadline, and where anything is out
// of the ordinary, it asks the ranks that it knows nothing of; they answer it directly, those that
// come later too. A rank that gives up waiting tells rank 0 and may come again: its latest message
// counts. A rank that stops right after the barrier has passed it.
#pragma once

#include "transfers.h"

#include <functional>

namespace tutti::distributed::mpi {

class TimedBarrier {
 public:
  enum class Purpose : std::int32_t { start, exit, gave_up };

  /// Tells the others that this process has come and for which purpose. Does not wait.
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
  enum class Kind : std::int32_t { report, came, question, decision };
  struct Message {
    Kind kind = Kind::report;
    Purpose purpose = Purpose::start;
    std::int32_t timed_out = 0;
    std::int32_t number = 0;  // of the barriers that its sender has passed
    char text[240] = {};      // of a decision: who is absent
  };
  void tell(int rank, const Message& message);
  bool poll();
  void receive_report(int from, const Message& message);
  void report_if_complete();
  void ask_unknown();
  std::string conflict() const;
  std::vector<int> missing() const;
  void give_up();
  void decide(const std::string& absent, bool timed_out);
  void finish(const Message& decision, std::span<const int> ranks);

  ControlChannel channel_;
  const Purpose purpose_;
  int rank_ = 0, size_ = 1;
  std::vector<int> children_;
  std::vector<std::optional<Purpose>> came_;  // by rank: what this one knows
  bool has_asked_ = false, decided_ = false, timed_out_ = false;
  Clock::time_point conflict_until_ = (Clock::time_point::max)();  // then it is decided
  std::string absent_;
};

}  // namespace tutti::distributed::mpi
