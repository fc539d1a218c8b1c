// Generator: an explicit stream of random numbers. Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011): the n-th number is a function of (seed, n) alone, so that
// a stream can be saved, moved and, on a GPU, produced by many threads with the same result.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace tutti {

class Generator {
 public:
  struct State {
    std::uint64_t seed = 0;
    std::uint64_t position = 0;  ///< how many 32-bit numbers were drawn
    bool operator==(const State&) const = default;
  };

  explicit Generator(std::uint64_t seed = 0) { set_state({seed, 0}); }

  std::uint32_t next();  ///< 32 uniform bits
  double uniform();      ///< in [0, 1), 53 bits
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  double normal();  ///< mean 0, standard deviation 1 (Box-Muller, two draws each)
  std::int64_t below(
      std::int64_t bound);  ///< uniform in 0..bound-1, unbiased; ValueError unless bound > 0
  std::vector<std::int64_t> permutation(std::int64_t n);

  State state() const { return state_; }
  void set_state(State state);

 private:
  void refill();
  State state_;
  std::array<std::uint32_t, 4> block_{};
};

/// The calling thread's generator: what layers initialise themselves and Dropout draws from unless
/// told otherwise. Thread-local, so that ranks which are threads neither race nor depend on each
/// other's timing.
Generator& default_generator();
/// Restarts the calling thread's default generator.
void manual_seed(std::uint64_t seed);

}  // namespace tutti
