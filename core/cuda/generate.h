// Values that core itself makes on a device: constants, and random masks with the same numbers as
// on the CPU.
#pragma once

#include "../random.h"

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

/// Writes `count` elements of `width` bytes (1, 2, 4 or 8), each the low bytes of `bits`.
void fill(void* data, int device, std::size_t width, std::uint64_t bits, std::int64_t count);

/// Element i becomes `bits` where the generator's i-th number from now on is smaller than `below`,
/// else 0. The generator moves on by `count` numbers. In a graph every replay draws from where the
/// generator then is.
void bernoulli(void* data, int device, std::size_t width, std::uint64_t bits, std::int64_t count,
               Generator& generator, std::uint64_t below);

}  // namespace tutti::cuda
