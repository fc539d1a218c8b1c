// A job of the simulator: ranks that run a function in a process of their own, which is forked for
// it, so that nothing of a rank that died is left behind. What the ranks did is kept in memory that
// both processes share.
#pragma once

#include "network.h"

#include <array>
#include <chrono>
#include <span>
#include <string>
#include <vector>

namespace tutti::simulator {

/// What a rank had done when it came to a point of its program.
struct Mark {
  Time at = 0;
  Traffic traffic = {};
};

/// What became of a rank.
struct Outcome {
  enum class State { running, succeeded, failed };
  static constexpr std::size_t most_marks = 8;
  State state = State::running;  ///< Of the rank's function, before its exit.
  bool has_exited = false;
  bool was_stopped = false;  ///< By a fault, for ever.
  std::uint64_t result = 0;  ///< What the function returned, where it succeeded.
  std::size_t marks = 0, peers = 0;
  Traffic traffic = {};                    ///< In all.
  std::array<Mark, most_marks> mark = {};  ///< The last one is that of the exit.
  int calls[3] = {0, 0, 0};                ///< By Fault::Where.
  char error[2000] = {};                   ///< What the function has thrown.
  char lines[1000] = {};                   ///< What the library printed on standard error.
};

struct Job {
  std::vector<Outcome> ranks;
  bool was_ended = false;  ///< By MPI_Abort or _exit().
  Time end = 0;
  std::string waits;  ///< Of the ranks that had not ended in time: who waits where.
};

/// Simulates a job whose rank r runs `main(r)`, exit handlers of the MPI backend included.
Job simulate(const Layout& layout, std::uint64_t seed, Time limit,
             const std::function<std::uint64_t(int)>& main);
/// Notes what the calling rank has done so far.
void mark();

}  // namespace tutti::simulator
