// Layout: how a kernel walks several tensors of one shape together. Dimensions that all operands
// can merge are merged, the first operand's smallest stride innermost. Where every operand lies
// densely (or is constant) along the innermost dimension, the work is counted in packs of four
// elements, which are loaded and stored at once; else in elements.
#pragma once

#include "../../core/cuda/launch.h"
#include "../../core/tensor.h"

#include <initializer_list>

namespace tutti::kernels::cuda {

/// Division by a number that is fixed for a whole launch, of n < 2^31: a multiplication and a shift
/// (Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994).
struct Divisor {
  std::uint32_t divisor = 1, multiplier = 0, shift = 0;
  Divisor() = default;
  explicit Divisor(std::int64_t d);
  __device__ std::uint32_t divide(std::uint32_t n) const {
    return static_cast<std::uint32_t>((((std::uint64_t{n} * multiplier) >> 32) + n) >> shift);
  }
};

/// Where one unit of work lies: `count` elements of each operand, the first at `at`.
template <int K>
struct Place {
  std::int64_t at[K];
  int count;
};

struct Layout {
  static constexpr int max_operands = 5, pack = 4;
  std::int64_t units = 0;
  std::int64_t inner = 1;  ///< elements of the innermost dimension
  int rank = 0;
  bool packed = false;
  Divisor divisors[Dims::max_rank];  ///< of the sizes in units, innermost first
  std::int64_t sizes[Dims::max_rank] = {};
  std::int64_t strides[max_operands][Dims::max_rank] =
      {};                            ///< in elements, from one unit to the next
  bool constant[max_operands] = {};  ///< along the innermost dimension

  /// The first operand (usually the output) sets the order; the others broadcast to its shape.
  /// `may_pack`: false where the kernel takes one element at a time.
  Layout(const Tensor* const* operands, std::size_t count, bool may_pack);
  explicit Layout(std::initializer_list<const Tensor*> operands)
      : Layout(operands.begin(), operands.size(), true) {}

  /// All operands lie densely, in the same order: their elements are one array.
  bool is_flat(int operands) const {
    bool flat = rank == 1;
    for (int k = 0; k < operands; ++k) flat = flat && strides[k][0] == (packed ? pack : 1);
    return flat;
  }

  template <int K>
  __device__ Place<K> place(std::int64_t unit) const {
    Place<K> place{};
    std::int64_t first = unit;
    for (int d = 0; d < rank; ++d) {
      std::int64_t index = unit;
      if (d + 1 < rank) {
        const std::int64_t rest =
            units < (std::int64_t{1} << 31)
                ? static_cast<std::int64_t>(divisors[d].divide(static_cast<std::uint32_t>(unit)))
                : unit / sizes[d];
        index = unit - rest * sizes[d];
        unit = rest;
      }
      if (d == 0) first = index;
      for (int k = 0; k < K; ++k) place.at[k] += index * strides[k][d];
    }
    const std::int64_t left = inner - first * pack;
    place.count = !packed ? 1 : left < pack ? static_cast<int>(left) : pack;
    return place;
  }
};

constexpr int block_threads = 256;
/// A grid for `work` threads' worth of work in grid-stride loops, on the current device.
tutti::cuda::Grid grid_for(std::int64_t work, int device);

}  // namespace tutti::kernels::cuda
