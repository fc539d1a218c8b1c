// Compares one random trial of an operation with its reference: the result, the gradients along one
// path and along two, and that no input was changed.
#pragma once

#include "operation.h"

#include <optional>

namespace tutti::test {

/// How the gradient reaches the operation. A sum passes an expanded gradient on. With two paths the
/// inputs get a second gradient, from a sum beside the operation.
enum class Path { dense, expanded, two_paths };
inline constexpr std::size_t path_count = 3;

/// What the seed of a trial says about it, whatever its operation. Both numbers are drawn, so that
/// no operation of a family gets one path only because its seeds have a common divisor with it.
struct SeedChoice {
  Path path;
  bool empty_batch;  ///< in one of 64 seeds

  /// Restarts the thread's default generator with the seed, and draws from it.
  explicit SeedChoice(std::uint64_t seed);
};

/// Draws a trial of the operation from `seed` and compares it. A failure says how to repeat it.
/// Returns the path along which gradients were compared, if any were.
std::optional<Path> check(const Operation& operation, std::uint64_t seed);

}  // namespace tutti::test
