// Arena: the memory of a graph. While a thread captures, its allocations come from an arena and its
// releases go to it, because a replay will use all of those addresses again.
#pragma once

#include "stream.h"

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace tutti::cuda {

class Arena {
 public:
  explicit Arena(int device);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int device() const { return memory_.device(); }
  /// Memory that is there before the graph first runs. A block goes only to the stream that gave it
  /// back: that is what orders its uses.
  void* allocate(std::size_t bytes, const Stream& stream);
  /// Likewise, but nothing that the graph computes is ever put there. Null where there is no room.
  void* apart(std::size_t bytes);
  void reuse(void* block, const Stream& stream);
  /// For what the graph needs and does not own, such as a block from outside that is given back
  /// during the capture: `let_go` is called when the graph is gone, with a stream on which
  /// everything comes after the last replay.
  void at_end(std::function<void(const Stream& last)> let_go) {
    at_end_.push_back(std::move(let_go));
  }
  /// The graph is gone. Tensors in its memory may live on.
  void end() noexcept;
  /// Whatever `stream` has done so far comes before the memory is given back.
  void used_on(const Stream& stream) { memory_.wait(stream); }
  /// The host waits (counted) until the memory is there.
  void settle() { memory_.synchronize("cuda::Graph"); }

  /// The arena of the calling thread's capture on a device, or null.
  static const std::shared_ptr<Arena>& current(int device);

 private:
  Stream memory_;  // never captured: blocks are allocated and given back on it
  std::map<void*, std::size_t> sizes_;
  std::map<CUstream_st*, std::multimap<std::size_t, void*>> free_;
  std::vector<std::function<void(const Stream&)>> at_end_;
};

/// The calling thread captures into `arena`.
class ArenaScope {
 public:
  explicit ArenaScope(std::shared_ptr<Arena> arena);
  ~ArenaScope();
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;
};

}  // namespace tutti::cuda
