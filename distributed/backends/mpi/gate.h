// Gate: where all processes of MPI_COMM_WORLD wait for each other before what blocks without a
// deadline: creating communicators (in split() the all-gather of colours does this) and finalising.
// Rank 0 collects the others and tells them; so it can say who is missing, which a barrier cannot.
// Who gives up waiting says so too, and may come again: of what a rank has said, the latest counts.
// A rank that stops, or gives up, right behind the gate is beyond it.
#pragma once

#include "runtime.h"

namespace tutti::distributed::mpi {

class Gate {
 public:
  enum class Purpose : std::int32_t { start, exit, none };  ///< none: has given up

  /// Says that this process has come, and for what. Does not wait.
  explicit Gate(Purpose purpose);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// True when it is decided. Never blocks.
  bool poll();
  /// At a deadline: decides that who has not come is missing.
  void close();
  /// Waits, until the deadline, and decides. A rank other than 0 waits a second longer: rank 0 has
  /// the names.
  void wait(std::chrono::steady_clock::time_point deadline,
            const std::function<void()>& in_between = {});

  /// Once decided: empty where all came for the same, else who did not: "rank 3 did not come",
  /// "rank 1 is at its exit".
  const std::string& absent() const { return absent_; }
  bool late() const {
    return late_;
  }  ///< somebody did not come, as opposed to: came for something else

 private:
  struct Memory {  // that MPI reads and writes
    Purpose purpose, gives_up = Purpose::none;
    std::vector<Purpose> came;
    struct Answer {
      std::int32_t late;
      char text[252];
    } answer = {};
  };
  void read_answer();
  void collect();
  void decide(std::string absent, bool late);

  std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  std::vector<MPI_Request> requests_;  // rank 0: receives by rank; else the message and the answer
  int rank_ = 0;
  bool decided_ = false, late_ = false;
  std::string absent_;
};

}  // namespace tutti::distributed::mpi
