// Arena is the memory of a captured graph. While a thread captures, its allocations come from an
// arena and its releases go back to it, because every replay uses the same addresses again.
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
  /// Returns a block for work on `stream`, or null if the device is out of memory. A released block
  /// is used again only on the stream that released it, since that stream orders the two uses.
  void* allocate(std::size_t bytes, const Stream& stream);
  /// Returns a block that nothing else in the graph ever uses, or null if the device is out of
  /// memory.
  void* allocate_unshared(std::size_t bytes);
  void release(void* block, const Stream& stream);
  /// Registers a callback for the end of the graph. It releases what the graph uses without owning
  /// it, such as a block from outside that is released during the capture. The callback gets a
  /// stream whose later work comes after the last replay.
  void when_graph_is_gone(std::function<void(const Stream& last)> callback) {
    callbacks_.push_back(std::move(callback));
  }
  /// Runs the callbacks. Tensors in the arena may outlive the graph.
  void graph_is_gone() noexcept;
  /// Makes the release of the memory wait for everything that `stream` has been given so far.
  void record_use(const Stream& stream) { memory_.wait(stream); }
  /// Makes the host wait (counted) until the allocations are done on the device.
  void wait_until_allocated() { memory_.synchronize("cuda::Graph"); }

  /// The arena from which the calling thread allocates while it captures; null at other times.
  static std::shared_ptr<Arena>& of_thread();
  /// Returns the arena of the calling thread's capture on a device, or null.
  static const std::shared_ptr<Arena>& current(int device);

 private:
  Stream memory_;  // never captured: blocks are allocated and freed on it
  std::map<void*, std::size_t> sizes_;
  std::map<CUstream_st*, std::multimap<std::size_t, void*>> free_;
  std::vector<std::function<void(const Stream&)>> callbacks_;
};

}  // namespace tutti::cuda
