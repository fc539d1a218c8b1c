// Replaces CUB's header of this name when kernels are emulated: sorts on the host, in the stream's
// order. It has what kernels/cuda/embedding.cu calls.
#pragma once

#include "../../../emulator.h"

#include <algorithm>
#include <type_traits>

namespace cub {

struct DeviceRadixSort {
  /// Sorts by the bits [begin_bit, end_bit), which are fewer than all, stably. Where `scratch` is
  /// null, it only sets `scratch_bytes`.
  template <class Key>
  static cudaError_t SortKeys(void* scratch, std::size_t& scratch_bytes, const Key* from, Key* to,
                              std::int64_t count, int begin_bit, int end_bit, cudaStream_t stream) {
    static_assert(std::is_unsigned_v<Key>);
    constexpr std::size_t some_bytes = 512;
    if (scratch == nullptr) return scratch_bytes = some_bytes, cudaSuccess;
    if (scratch_bytes < some_bytes) return cudaErrorInvalidValue;
    emulator::enqueue(stream, [=] {
      const auto digits = [=](Key key) {
        return key >> begin_bit & ((Key{1} << (end_bit - begin_bit)) - 1);
      };
      std::copy_n(from, count, to);
      std::stable_sort(to, to + count, [&](Key a, Key b) { return digits(a) < digits(b); });
    });
    return cudaSuccess;
  }
};

}  // namespace cub
