// Values that core itself makes on a device: constants, and random masks with the same numbers as on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

/// Writes `count` elements of `width` bytes (1, 2, 4 or 8), each the low bytes of `bits`.
void fill(void* data, int device, std::size_t width, std::uint64_t bits, std::int64_t count);

/// Element i becomes `bits` where draw `position` + i of the Philox stream `seed` is smaller than `below`, else 0.
/// DeviceError while a graph is captured: each replay would draw the same numbers.
void bernoulli(void* data, int device, std::size_t width, std::uint64_t bits, std::int64_t count, std::uint64_t seed,
               std::uint64_t position, std::uint64_t below);

}  // namespace tutti::cuda
