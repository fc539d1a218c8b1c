#include "layout.h"

#include "../../core/cuda/runtime.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace tutti::kernels::cuda {
namespace {

std::int64_t broadcast_stride(const Tensor& x, int d, int rank) {
  const int own = d - (rank - x.rank());
  return own < 0 || x.shape()[own] == 1 ? 0 : x.strides()[own];
}

}  // namespace

Divisor::Divisor(std::int64_t d) : divisor(static_cast<std::uint32_t>(d)) {
  if (d <= 0 || d >= (std::int64_t{1} << 31))
    return;  // not asked: the walk has more units than that
  while ((std::uint64_t{1} << shift) < divisor) ++shift;
  multiplier = static_cast<std::uint32_t>(
      (std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - divisor) / divisor + 1);
}

Layout::Layout(const Tensor* const* operands, std::size_t operand_count, bool may_pack) {
  const Tensor& out = *operands[0];
  const int all = out.rank();
  std::vector<int> order;
  for (int d = all - 1; d >= 0; --d)
    if (out.shape()[d] != 1) order.push_back(d);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return out.strides()[a] < out.strides()[b]; });

  for (const int d : order) {
    const std::int64_t size = out.shape()[d];
    std::int64_t step[max_operands] = {};
    bool merges = rank > 0;
    for (std::size_t k = 0; k < operand_count; ++k) {
      step[k] = broadcast_stride(*operands[k], d, all);
      merges = merges && step[k] == strides[k][rank - 1] * sizes[rank - 1];
    }
    if (merges) {
      sizes[rank - 1] *= size;
      continue;
    }
    sizes[rank] = size;
    for (std::size_t k = 0; k < operand_count; ++k) strides[k][rank] = step[k];
    ++rank;
  }
  if (rank == 0) {  // one element
    rank = 1;
    sizes[0] = 1;
    for (std::size_t k = 0; k < operand_count; ++k) strides[k][0] = 1;
  }

  inner = sizes[0];
  packed = may_pack;
  for (std::size_t k = 0; k < operand_count; ++k) {
    const Tensor& x = *operands[k];
    constant[k] = strides[k][0] == 0;
    packed = packed && (constant[k] || strides[k][0] == 1);
    if (constant[k]) continue;
    packed = packed && reinterpret_cast<std::uintptr_t>(x.raw()) % (pack * size_of(x.dtype())) == 0;
    for (int d = 1; d < rank; ++d) packed = packed && strides[k][d] % pack == 0;
  }
  if (packed) {
    sizes[0] = (inner + pack - 1) / pack;
    for (std::size_t k = 0; k < operand_count; ++k) strides[k][0] *= pack;
  }
  units = out.numel() == 0 ? 0 : 1;
  for (int d = 0; d < rank && units; ++d) {
    units *= sizes[d];
    divisors[d] = Divisor(sizes[d]);
  }
}

tutti::cuda::Grid grid_for(std::int64_t work, int device) {
  const std::int64_t blocks = (work + block_threads - 1) / block_threads;
  const std::int64_t most = std::int64_t{32} * tutti::cuda::properties(device).multiprocessors;
  return {.blocks = static_cast<unsigned>(std::min(blocks, most)), .threads = block_threads};
}

}  // namespace tutti::kernels::cuda
