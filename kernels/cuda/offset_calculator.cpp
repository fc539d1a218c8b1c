#include "offset_calculator.h"

#include "../../core/cuda/runtime.h"
#include "../merged_dims.h"

#include <algorithm>

namespace tutti::kernels::cuda {

IntegerDivider::IntegerDivider(std::int64_t d) : divisor(static_cast<std::uint32_t>(d)) {
  // A larger divisor is never used: there are more than 2^31 units then.
  if (d <= 0 || d >= (std::int64_t{1} << 31)) return;
  while ((std::uint64_t{1} << shift) < divisor) ++shift;
  multiplier = static_cast<std::uint32_t>(
      (std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - divisor) / divisor + 1);
}

OffsetCalculator::OffsetCalculator(std::span<const Tensor* const> tensors, bool may_vectorize) {
  static_assert(max_tensors <= static_cast<int>(MergedDims::max_tensors));
  const MergedDims merged = merge_dims(tensors);
  rank = std::max(merged.shape.size(), 1);
  if (merged.shape.empty()) {  // one element
    sizes[0] = 1;
    for (std::size_t k = 0; k < tensors.size(); ++k) strides[k][0] = 1;
  }
  for (int d = 0; d < merged.shape.size(); ++d) {  // `merged` has the innermost dimension last
    sizes[rank - 1 - d] = merged.shape[d];
    for (std::size_t k = 0; k < tensors.size(); ++k)
      strides[k][rank - 1 - d] = merged.strides[k][d];
  }

  inner = sizes[0];
  vectorized = may_vectorize;
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const Tensor& x = *tensors[k];
    constant[k] = strides[k][0] == 0;
    vectorized = vectorized && (constant[k] || strides[k][0] == 1);
    if (constant[k]) continue;
    const auto address = reinterpret_cast<std::uintptr_t>(x.raw());
    vectorized = vectorized && address % (vector_size * size_of(x.dtype())) == 0;
    for (int d = 1; d < rank; ++d) vectorized = vectorized && strides[k][d] % vector_size == 0;
  }
  if (vectorized) {
    sizes[0] = (inner + vector_size - 1) / vector_size;
    for (std::size_t k = 0; k < tensors.size(); ++k) strides[k][0] *= vector_size;
  }
  units = tensors.front()->numel() == 0 ? 0 : 1;
  for (int d = 0; d < rank && units; ++d) {
    units *= sizes[d];
    dividers[d] = IntegerDivider(sizes[d]);
  }
}

tutti::cuda::Grid grid_for(std::int64_t work, int device) {
  const std::int64_t blocks = (work + block_threads - 1) / block_threads;
  const std::int64_t most = std::int64_t{32} * tutti::cuda::properties(device).multiprocessors;
  return {.blocks = static_cast<unsigned>(std::min(blocks, most)), .threads = block_threads};
}

}  // namespace tutti::kernels::cuda
