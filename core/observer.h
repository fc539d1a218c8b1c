// An Observer sees which tensors and generators a thread uses. recompute() compares the two runs of
// a function by what they use (autograd/recompute.h).
#pragma once

#include <atomic>
#include <cstdint>

namespace tutti {

class Generator;
class Tensor;

/// Sees what a thread uses while it is the thread's `current` observer. What other threads do for
/// that thread, such as those of OpenMP, is not seen.
struct Observer {
  /// Runs before an operation gets the address of a tensor's elements, to read or to write them. It
  /// must not throw, because that may be in a parallel loop.
  virtual void before_access(const Tensor& tensor) noexcept = 0;
  /// Runs before a generator draws, or its state is read or set.
  virtual void before_draw(Generator& generator) = 0;

  inline static constinit thread_local Observer* current = nullptr;
};

/// Returns a number that no other call in this process returns, larger than those before. It tells
/// objects apart, also where one takes the memory of another, and says which of two is older.
inline std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> latest{0};
  return 1 + latest.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace tutti
