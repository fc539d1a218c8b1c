// The random masks that core makes on a device, with the same numbers as on the CPU.
#pragma once

#include "../random.h"

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

/// The elements that bernoulli() writes, and the bits of the value that it writes into them.
/// `width` is the size of an element: 1, 2, 4 or 8 bytes, the low ones of `bits`.
struct Elements {
  void* data;
  int device;
  std::size_t width;
  std::int64_t count;
  std::uint64_t bits;
};

/// Writes the value into element i if the generator's i-th next number is smaller than `below`, and
/// 0 if not. The generator advances by `count` numbers. In a graph every replay draws from where
/// the generator is at that time.
void bernoulli(const Elements& out, Generator& generator, std::uint64_t below);

}  // namespace tutti::cuda
