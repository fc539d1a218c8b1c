// The race detector of the emulator. A library of kernels that is compiled with -fsanitize=thread
// calls a function before every access to memory (race_detector.cpp defines these functions, and
// nothing of ThreadSanitizer is linked). The detector keeps the last accesses to every byte and
// vector clocks of the CUDA threads, as FastTrack does (Flanagan, Freund, "FastTrack: efficient and
// precise dynamic race detection", 2009), and aborts where two threads access the same byte, one of
// them writes, not both are atomic, and nothing orders them.
//
// These order two accesses: __syncthreads within a block, __syncwarp within a warp, and the pattern
// fence, atomic, atomic of the same word, fence, whose steps may be taken by different threads of a
// block if a barrier lies between them. Shuffles and votes order nothing, as CUDA documents.
// Launches are ordered.
#pragma once

#include "emulator.h"

#include <map>
#include <memory>
#include <span>
#include <unordered_map>

namespace emulator {

class RaceDetector {
 public:
  /// True if a library of kernels is loaded that was compiled with -fsanitize=thread.
  static bool is_on();

  /// Watches the calling host thread, which runs the launch, while the object lives.
  explicit RaceDetector(const Launch& launch);
  ~RaceDetector();
  RaceDetector(const RaceDetector&) = delete;
  RaceDetector& operator=(const RaceDetector&) = delete;

  /// Begins a block; its shared memory holds nothing that threads have accessed.
  void begin_block(std::size_t block, Region dynamic_shared);
  /// Tells which thread of the block runs from now on.
  void resume(std::size_t thread) { running_ = &threads_[thread]; }

  void join_warp();  ///< the warp of the running thread has passed __syncwarp
  void join_block();
  void fence();  ///< the running thread

  enum class Access { read, write, atomic_read, atomic_write };
  void access(const void* address, std::size_t bytes, Access kind, const void* instruction);
  /// Orders the threads that exchange something by an atomic operation. `releases` and `acquires`
  /// say whether the operation writes and reads.
  void exchange(const void* address, bool acquires, bool releases);

 private:
  using Time = std::uint32_t;
  using Clock = std::map<std::uint64_t, Time>;  ///< times by a scope: a thread, a warp or a block
  using ClockPointer = std::shared_ptr<const Clock>;

  // A thread's time advances at every barrier and fence. A scope that was seen at time t means that
  // all accesses of its threads up to their times t come before.
  struct Thread {
    std::size_t number = 0, warp = 0, block = 0;  // within the grid
    Time now = 1, seen_warp = 0, seen_block = 0;  // of its own warp and block
    ClockPointer others;                          // what else was seen
    ClockPointer released;  // what comes before a fence that comes before this point
    ClockPointer acquired;  // what an atomic operation has read, until the next fence
  };
  struct Cell;
  struct Word;
  struct Place;

  bool locate(std::uintptr_t address, Place& place) const;
  void check(Word& word, const Cell& cell, const Place& place);
  bool is_before(const Cell& cell, const Thread& thread) const;
  ClockPointer everything_before(const Thread& thread) const;
  void join(std::span<Thread> threads, Time Thread::*seen);
  void fold(Clock& clock, std::size_t block) const;
  std::string describe(const Cell& cell) const;
  [[noreturn]] void report(const Cell& earlier, const Cell& later, const Place& place) const;

  const Launch& launch_;
  std::size_t block_threads_, block_warps_;
  const std::vector<Region>& static_shared_;
  const std::uint32_t stamp_;  ///< of the launch, for device memory
  // The block in progress, with a stamp for its shared memory.
  std::vector<Thread> threads_;
  Region dynamic_shared_{};
  std::uint32_t block_stamp_ = 0;
  Thread* running_ = nullptr;
  struct Exchanged {
    std::uint32_t stamp = 0;
    ClockPointer clock;
  };
  std::unordered_map<std::uint64_t, Exchanged> exchanged_;
  Random random_{~std::uint64_t{1}};
};

}  // namespace emulator
