// ReplayCalls keeps what a captured graph calls on the host before each replay, and the positions
// of the random generators that the captured step draws from. A graph would freeze such a position
// if it were a kernel argument; kernels therefore read it from device memory of the graph.
#pragma once

#include "../random.h"
#include "arena.h"

#include <cstdint>
#include <functional>

namespace tutti::cuda {

class ReplayCalls {
 public:
  /// Returns the calls of the graph that the calling thread captures on a device; null if
  /// cuda::Graph captures nothing there.
  static ReplayCalls* current(int device);
  explicit ReplayCalls(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}
  ReplayCalls(const ReplayCalls&) = delete;
  ReplayCalls& operator=(const ReplayCalls&) = delete;

  /// Adds a call; see call_before_replay in graph.h.
  void add(std::function<void()> call) { calls_.push_back(std::move(call)); }

  /// The position in a generator's stream from which a captured kernel draws: `offset` numbers
  /// after the state that the generator has when a replay begins.
  struct RandomOffset {
    const std::uint64_t* base;  ///< device memory with that state's seed and position
    std::uint64_t offset;
  };
  /// Returns the offset of the generator's present position. Throws a DeviceError if the generator
  /// was given another state since the capture's first draw.
  RandomOffset random_offset(const char* op, Generator& generator);

  /// Makes every call, in the order in which they were added.
  void run() const;

  /// CaptureScope makes calls the calling thread's current ones during a capture. At its end every
  /// generator gets back the state it had before, since a capture draws nothing yet.
  class CaptureScope {
   public:
    explicit CaptureScope(ReplayCalls& calls);
    ~CaptureScope();
    CaptureScope(const CaptureScope&) = delete;
    CaptureScope& operator=(const CaptureScope&) = delete;
  };

 private:
  struct CapturedGenerator {
    Generator* generator;
    Generator::State begin;                // its state when the capture first drew from it
    const std::uint64_t* base;             // device memory for the state at a replay
    std::shared_ptr<std::uint64_t> drawn;  // numbers that one replay draws
  };
  std::shared_ptr<Arena> arena_;
  std::vector<std::function<void()>> calls_;
  std::vector<CapturedGenerator> generators_;
};

}  // namespace tutti::cuda
