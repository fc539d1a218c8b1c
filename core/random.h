// Generator is an explicit stream of random numbers from Philox4x32-10 (Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011). The n-th number is a function of (seed, n) alone,
// so a stream can be saved, moved and, on a GPU, produced by many threads with the same result.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace tutti {

/// A stream of random numbers, which its seed and its position determine.
class Generator {
 public:
  /// The state of a generator.
  struct State {
    std::uint64_t seed = 0;
    std::uint64_t position = 0;  ///< how many 32-bit numbers have been drawn
    bool operator==(const State&) const = default;
  };

  explicit Generator(std::uint64_t seed = 0) : state_{seed, 0} { refill(); }
  Generator(const Generator& other) : Generator() { set_state(other.state()); }
  Generator& operator=(const Generator& other) { return set_state(other.state()), *this; }

  /// Returns 32 uniform bits.
  std::uint32_t next();
  /// Returns a uniform number in [0, 1) with 53 random bits.
  double uniform();
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// Returns a normal number with mean 0 and standard deviation 1, made of two uniform numbers
  /// (Box-Muller).
  double normal();
  /// Returns a uniform integer in 0..bound-1, without bias. Throws a ValueError unless bound > 0.
  std::int64_t below(std::int64_t bound);
  /// Returns 0..n-1 in random order.
  std::vector<std::int64_t> permutation(std::int64_t n);

  State state() const { return state_; }
  void set_state(State state);

 private:
  void refill();
  State state_;
  std::array<std::uint32_t, 4> block_{};
};

/// Returns the calling thread's generator, from which layers initialise themselves and Dropout
/// draws unless told otherwise. It is thread-local, so threads do not race for it.
///
/// The main thread's generator begins with seed 0. Every other thread begins with a seed of its
/// own, which follows from the seed of the process and the number of the thread: threads count
/// from 1, in the order in which they first call this function. Where that order can change and
/// the numbers must not, a thread calls manual_seed() itself. The ranks of run_ranks() all begin
/// with seed 0, as ranks that are processes do.
Generator& default_generator();
/// Restarts the calling thread's default generator with another seed. Called on the main thread, it
/// also sets the seed of the process (0 before), and threads that start to draw later count from 1
/// again. The generators of threads that have begun to draw do not change.
void manual_seed(std::uint64_t seed);

}  // namespace tutti
