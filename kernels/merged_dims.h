// Merging of dimensions: several tensors of one shape seen with as few dimensions as possible, so
// that loops over their elements are as long as they can be.
#pragma once

#include "../core/tensor.h"

#include <array>
#include <span>

namespace tutti::kernels {

struct MergedDims {
  static constexpr std::size_t max_tensors = 5;
  /// Sizes without dimensions of size 1, outermost first; empty where there is one element only.
  Shape shape;
  /// The strides of each tensor, in elements; 0 where the tensor broadcasts.
  std::array<Strides, max_tensors> strides;
};

/// Returns the stride of `x` along dimension `dim` of the `rank` dimensions that it broadcasts to.
inline std::int64_t broadcast_stride(const Tensor& x, int dim, int rank) {
  const int own = dim - (rank - x.rank());
  return own < 0 || x.shape()[own] == 1 ? 0 : x.strides()[own];
}

/// Merges the dimensions that all tensors can merge. The first tensor (usually the output) has the
/// full shape and its strides decide the order, the largest outermost; the others broadcast to it.
inline MergedDims merge_dims(std::span<const Tensor* const> tensors) {
  const Tensor& first = *tensors.front();
  const int rank = first.rank();
  std::array<int, Dims::max_rank> order{};
  // A stable insertion sort, because std::stable_sort allocates memory.
  for (int d = 0; d < rank; ++d) {
    int at = d;
    for (; at > 0 && first.strides()[order[static_cast<std::size_t>(at - 1)]] < first.strides()[d];
         --at)
      order[static_cast<std::size_t>(at)] = order[static_cast<std::size_t>(at - 1)];
    order[static_cast<std::size_t>(at)] = d;
  }
  MergedDims merged;
  for (int i = 0; i < rank; ++i) {
    const int d = order[static_cast<std::size_t>(i)];
    const std::int64_t size = first.shape()[d];
    if (size == 1) continue;
    std::array<std::int64_t, MergedDims::max_tensors> strides{};
    bool merges = !merged.shape.empty();
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      strides[k] = broadcast_stride(*tensors[k], d, rank);
      merges = merges && merged.strides[k].back() == strides[k] * size;
    }
    if (merges) merged.shape[merged.shape.size() - 1] *= size;
    else merged.shape.push_back(size);
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      if (merges) merged.strides[k][merged.strides[k].size() - 1] = strides[k];
      else merged.strides[k].push_back(strides[k]);
    }
  }
  return merged;
}

}  // namespace tutti::kernels
