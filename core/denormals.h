// Denormal numbers, of magnitudes below about 1e-38 in float32, cost some processors 150 cycles
// each. Threads that compute for tutti take them for 0 meanwhile. This file has the setting and the
// scope that applies it to the calling thread; parallel_for and the calls of oneDNN use the scope.
#pragma once

#include <atomic>
#include <cstdint>

namespace tutti {

/// Sets whether operations on the CPU take denormal numbers for 0, in what they read and in what
/// they write; they do by default. It holds for all threads, from their next operation on.
/// Comparisons, extrema, integers and copies, also to another dtype, keep denormals always.
void set_flush_denormals(bool flush);
/// Returns whether operations on the CPU take denormal numbers for 0.
bool flush_denormals();

namespace detail {

inline constinit std::atomic<bool> flushing{true};
/// Set by an operation that compares, for a scope.
inline constinit thread_local bool keeps_denormals = false;

/// Returns whether operations that the calling thread begins now take denormal numbers for 0.
inline bool flushes_denormals_here() {
  return !keeps_denormals && flushing.load(std::memory_order_relaxed);
}

/// Lets the calling thread take denormal numbers for 0, or not, while it exists, and restores the
/// thread's register of floating-point control.
class DenormalScope {
 public:
  explicit DenormalScope(bool flush = flushes_denormals_here())
      : before_(read()), changes_(flush ? (before_ & bits) != bits : (before_ & bits) != 0) {
    if (changes_) set(flush);
  }
  ~DenormalScope() {
    if (changes_) write(before_);
  }
  /// Sets the same for good.
  static void set(bool flush) { write(flush ? read() | bits : read() & ~bits); }
  DenormalScope(const DenormalScope&) = delete;
  DenormalScope& operator=(const DenormalScope&) = delete;

#if defined(__SSE__)
  using Register = unsigned;
  static constexpr Register bits = 0x8040;  ///< flush to zero, and denormals are zero
  static Register read() { return __builtin_ia32_stmxcsr(); }

 private:
  static void write(Register value) {
    asm volatile("" ::: "memory");  // no load or store moves to the other side
    __builtin_ia32_ldmxcsr(value);
    asm volatile("" ::: "memory");
  }
#elif defined(__aarch64__)
  using Register = std::uint64_t;
  static constexpr Register bits = std::uint64_t{1} << 24;  ///< FZ
  static Register read() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }

 private:
  static void write(Register value) { asm volatile("msr fpcr, %0" ::"r"(value) : "memory"); }
#else  // a processor of which nothing is known keeps denormals
  using Register = unsigned;
  static constexpr Register bits = 0;
  static Register read() { return 0; }

 private:
  static void write(Register) {}
#endif

  Register before_;
  bool changes_;
};

}  // namespace detail

inline void set_flush_denormals(bool flush) { detail::flushing = flush; }
inline bool flush_denormals() { return detail::flushing; }

}  // namespace tutti
