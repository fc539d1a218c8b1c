// Recording: what of a captured step is the host's: numbers that are others in every step, such as
// a learning rate or the position of a random generator. As arguments of kernels they would be
// those of the capture for ever. So kernels read them from memory of the graph, which the host
// writes anew before each replay, through pinned memory.
#pragma once

#include "../random.h"
#include "arena.h"

#include <cstdint>
#include <functional>

namespace tutti::cuda {

class Recording {
 public:
  /// The calling thread's, of its capture on a device; null where cuda::Graph captures nothing
  /// there.
  static Recording* current(int device);
  explicit Recording(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// See written_before_replay in graph.h.
  void* written(std::size_t bytes, std::function<void(void*)> write);

  /// Where a draw of numbers begins: `offset` after the state that the generator has when a replay
  /// begins.
  struct Draw {
    const std::uint64_t* base;  ///< on the device: that state's seed and position
    std::uint64_t offset;
  };
  /// From where the generator is now. DeviceError where it was given another state since the
  /// capture's first draw.
  Draw draw(const char* op, Generator& generator);

  /// Enqueues the copies of what the host now writes.
  void write(const Stream& stream) const;

  /// The calling thread captures. At its end generators are back where they were: nothing has been
  /// drawn yet.
  class Scope {
   public:
    explicit Scope(Recording& recording);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

 private:
  struct Block {
    void* memory;
    std::size_t bytes;
    std::function<void(void*)> write;
  };
  struct Draws {
    Generator* generator;
    Generator::State begin;
    const std::uint64_t* base;
    std::shared_ptr<std::uint64_t> count;  // of a whole step
  };
  std::shared_ptr<Arena> arena_;
  std::vector<Block> blocks_;
  std::vector<Draws> draws_;
};

}  // namespace tutti::cuda
