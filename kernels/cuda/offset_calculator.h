// OffsetCalculator computes the memory offsets of the elements of several tensors of one shape in a
// kernel. Its unit of work is four neighbouring elements, which are loaded and stored at once, if
// every tensor is dense (or constant) along its innermost dimension, else a single element.
#pragma once

#include "../../core/cuda/launch.h"
#include "../../core/tensor.h"

#include <initializer_list>
#include <span>

namespace tutti::kernels::cuda {

/// Divides n < 2^31 by a number that is fixed for a whole launch, with a multiplication and a shift
/// (Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994).
struct IntegerDivider {
  std::uint32_t divisor = 1, multiplier = 0, shift = 0;
  IntegerDivider() = default;
  explicit IntegerDivider(std::int64_t d);
  __device__ std::uint32_t divide(std::uint32_t n) const {
    return static_cast<std::uint32_t>((((std::uint64_t{n} * multiplier) >> 32) + n) >> shift);
  }
};

/// A unit of work: `count` elements of each of K tensors, the first at offset `at`.
template <int K>
struct Offsets {
  std::int64_t at[K];
  int count;
};

struct OffsetCalculator {
  static constexpr int max_tensors = 5;
  static constexpr int vector_size = 4;  ///< The number of elements of a vectorized unit.
  std::int64_t units = 0;
  std::int64_t inner = 1;  ///< The number of elements of the innermost dimension.
  int rank = 0;
  bool vectorized = false;
  IntegerDivider dividers[Dims::max_rank];  ///< Dividers by `sizes`.
  std::int64_t sizes[Dims::max_rank] = {};  ///< The sizes in units, innermost first.
  /// The strides from one unit to the next, in elements.
  std::int64_t strides[max_tensors][Dims::max_rank] = {};
  bool constant[max_tensors] = {};  ///< True if constant along the innermost dimension.

  /// Merges dimensions as merge_dims does. `may_vectorize` is false for kernels that take one
  /// element at a time.
  OffsetCalculator(std::span<const Tensor* const> tensors, bool may_vectorize);
  explicit OffsetCalculator(std::initializer_list<const Tensor*> tensors)
      : OffsetCalculator({tensors.begin(), tensors.size()}, true) {}

  /// Whether all of the first `tensors` tensors are dense in the same order, like plain arrays.
  bool is_flat(int tensors) const {
    bool flat = rank == 1;
    for (int k = 0; k < tensors; ++k)
      flat = flat && strides[k][0] == (vectorized ? vector_size : 1);
    return flat;
  }

  template <int K>
  __device__ Offsets<K> offsets(std::int64_t unit) const {
    Offsets<K> result{};
    std::int64_t first = unit;
    for (int d = 0; d < rank; ++d) {
      std::int64_t index = unit;
      if (d + 1 < rank) {
        const std::int64_t rest =
            units < (std::int64_t{1} << 31)
                ? static_cast<std::int64_t>(dividers[d].divide(static_cast<std::uint32_t>(unit)))
                : unit / sizes[d];
        index = unit - rest * sizes[d];
        unit = rest;
      }
      if (d == 0) first = index;
      for (int k = 0; k < K; ++k) result.at[k] += index * strides[k][d];
    }
    const std::int64_t left = inner - first * vector_size;
    result.count = !vectorized ? 1 : left < vector_size ? static_cast<int>(left) : vector_size;
    return result;
  }
};

constexpr int block_threads = 256;

/// Returns a grid of blocks of `block_threads` threads for a kernel that loops over `work` indices
/// with first_index() and index_step() (element.h).
tutti::cuda::Grid grid_for(std::int64_t work, int device);

}  // namespace tutti::kernels::cuda
