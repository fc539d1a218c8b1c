#include "merged_dims.h"

#include <algorithm>

namespace tutti::kernels {
namespace {

// The stride of `x` along dimension `dim` of the `rank` dimensions that it broadcasts to.
std::int64_t broadcast_stride(const Tensor& x, int dim, int rank) {
  const int own = dim - (rank - x.rank());
  return own < 0 || x.shape()[own] == 1 ? 0 : x.strides()[own];
}

}  // namespace

MergedDims merge_dims(std::span<const Tensor* const> tensors) {
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
