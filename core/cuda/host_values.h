// HostValues keeps the host values that change in every step, such as a learning rate or the state
// of a random generator, and refreshes them before each replay of a captured graph. A graph would
// freeze them if they were kernel arguments; kernels therefore read them from device memory of the
// graph, which the host fills through pinned memory.
#pragma once

#include "../random.h"
#include "arena.h"

#include <cstdint>
#include <functional>

namespace tutti::cuda {

class HostValues {
 public:
  /// Returns the values of the graph that the calling thread captures on a device; null if
  /// cuda::Graph captures nothing there.
  static HostValues* current(int device);
  explicit HostValues(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}
  HostValues(const HostValues&) = delete;
  HostValues& operator=(const HostValues&) = delete;

  /// Allocates device memory that `write` fills; see refresh_before_replay in graph.h.
  void* add(std::size_t bytes, std::function<void(void*)> write);
  /// Calls `prepare` before each replay; see call_before_replay in graph.h.
  void add_call(std::function<void()> prepare);

  /// The position in a generator's stream from which a captured kernel draws: `offset` numbers
  /// after the state that the generator has when a replay begins.
  struct RandomOffset {
    const std::uint64_t* base;  ///< device memory with that state's seed and position
    std::uint64_t offset;
  };
  /// Returns the offset of the generator's present position. Throws a DeviceError if the generator
  /// was given another state since the capture's first draw.
  RandomOffset random_offset(const char* op, Generator& generator);

  /// Calls every `write` and enqueues the copies of the results to the device.
  void refresh(const Stream& stream) const;

  /// CaptureScope makes values the calling thread's current ones during a capture. At its end every
  /// generator gets back the state it had before, since a capture draws nothing yet.
  class CaptureScope {
   public:
    explicit CaptureScope(HostValues& values);
    ~CaptureScope();
    CaptureScope(const CaptureScope&) = delete;
    CaptureScope& operator=(const CaptureScope&) = delete;
  };

 private:
  struct Block {
    void* memory;
    std::size_t bytes;
    std::function<void(void*)> write;
  };
  struct CapturedGenerator {
    Generator* generator;
    Generator::State begin;                // its state when the capture first drew from it
    const std::uint64_t* base;             // device memory for the state at a replay
    std::shared_ptr<std::uint64_t> drawn;  // numbers that one replay draws
  };
  std::shared_ptr<Arena> arena_;
  std::vector<Block> blocks_;
  std::vector<CapturedGenerator> generators_;
};

}  // namespace tutti::cuda
