#include "random.h"

#include "error.h"
#include "parallel.h"
#include "philox.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numbers>
#include <numeric>

namespace tutti {

void Generator::set_state(State state) {
  state_ = state;
  refill();
}

void Generator::refill() {
  const PhiloxBlock drawn = philox(state_.seed, state_.position / 4);
  std::copy_n(drawn.words, 4, block_.begin());
}

std::uint32_t Generator::next() {
  const std::uint32_t value = block_[state_.position % 4];
  if (++state_.position % 4 == 0) refill();
  return value;
}

double Generator::uniform() {
  const std::uint64_t high = next(), low = next();
  return static_cast<double>(((high << 32) | low) >> 11) * 0x1p-53;
}

double Generator::normal() {
  const double radius = std::sqrt(-2 * std::log1p(-uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

std::int64_t Generator::below(std::int64_t bound) {
  if (bound <= 0) fail<ValueError>("Generator::below: expected a positive bound, got {}", bound);
  const auto n = static_cast<std::uint64_t>(bound);
  // Numbers from the largest multiple of n on are drawn again: they would favour small results.
  const std::uint64_t unbiased = ~std::uint64_t{0} - ~std::uint64_t{0} % n;
  for (;;) {
    const std::uint64_t high = next(), low = next(), value = (high << 32) | low;
    if (value < unbiased) return static_cast<std::int64_t>(value % n);
  }
}

std::vector<std::int64_t> Generator::permutation(std::int64_t n) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::int64_t i = n - 1; i > 0; --i)
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(below(i + 1))]);
  return order;
}

namespace {

// The process-wide state from which threads other than the main thread take their seeds.
struct ProcessSeed {
  std::mutex mutex;
  std::uint64_t seed = 0;
  std::uint64_t threads = 0;  // how many threads have taken a seed
};

ProcessSeed& process_seed() {
  static auto& instance = *new ProcessSeed;  // threads may outlive static objects
  return instance;
}

// Returns the generator with which the calling thread begins. A thread's seed is a block of the
// process's stream, counted from the end of the stream, which no generator reaches.
Generator first_generator() {
  if (detail::is_main_thread()) return Generator(0);
  ProcessSeed& process = process_seed();
  const std::lock_guard lock(process.mutex);
  const PhiloxBlock drawn = philox(process.seed, ~++process.threads);
  return Generator((std::uint64_t{drawn.words[0]} << 32) | drawn.words[1]);
}

}  // namespace

Generator& default_generator() {
  thread_local Generator generator = first_generator();
  return generator;
}

void manual_seed(std::uint64_t seed) {
  default_generator() = Generator(seed);
  if (!detail::is_main_thread()) return;
  ProcessSeed& process = process_seed();
  const std::lock_guard lock(process.mutex);
  process.seed = seed;
  process.threads = 0;
}

}  // namespace tutti
