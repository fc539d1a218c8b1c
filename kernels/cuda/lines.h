// Lines: tensors seen as lines along one dimension, each worked on by a group of threads: one
// thread where neighbouring lines are neighbours in memory, a warp or a whole block where the
// elements of a line are.
#pragma once

#include "element.h"

namespace tutti::kernels::cuda {

constexpr int warp_threads = 32, block_warps = block_threads / warp_threads;

struct Lines {
  Layout starts;  ///< of the lines, one unit each
  std::int64_t length;
  int group;  ///< threads for each line: 1, 32 or all of a block

  /// The first operand decides how its lines are read. `dim` is the first tensor's; `others` come
  /// without it.
  Lines(const Tensor& first, int dim, const Tensor& first_start,
        std::initializer_list<const Tensor*> others)
      : starts(join(first_start, others)), length(first.shape()[dim]), group(1) {
    const bool dense = first.strides()[dim] == 1 || starts.units < 4096;
    if (dense && length > 1) group = length >= 2048 ? block_threads : warp_threads;
  }
  tutti::cuda::Grid grid(int device) const { return grid_for(starts.units * group, device); }

 private:
  static Layout join(const Tensor& first, std::initializer_list<const Tensor*> others) {
    const Tensor* all[Layout::max_operands] = {&first};
    std::size_t count = 1;
    for (const Tensor* other : others) all[count++] = other;
    return Layout(all, count, false);
  }
};

/// The tensor without a dimension: where its lines along it start.
inline Tensor starts_of(const Tensor& x, int dim) {
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.erase(dim);
  strides.erase(dim);
  return x.alias(shape, strides, x.offset());
}

struct Sum {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a + b;
  }
};
struct Larger {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return b > a ? b : a;
  }
};

/// Every thread of a group gets what `combine` makes of all its values, in an order that is always
/// the same. All threads of the block must call it.
template <class A, class Combine>
__device__ inline A over_group(A value, int group, const Combine& combine) {
  if (group == 1) return value;
  for (int step = warp_threads / 2; step > 0; step /= 2)
    value = combine(value, __shfl_xor_sync(~0u, value, step));
  if (group == warp_threads) return value;
  __shared__ A of_warps[block_warps];
  if (threadIdx.x % warp_threads == 0) of_warps[threadIdx.x / warp_threads] = value;
  __syncthreads();
  A total = of_warps[0];
  for (int w = 1; w < block_warps; ++w) total = combine(total, of_warps[w]);
  __syncthreads();  // before the next call writes
  return total;
}

/// Calls body(place, lane, valid) for every line, with all threads of a block as often; `valid` is
/// false for threads that only keep the others company.
template <int K, class Body>
__device__ inline void for_lines(const Lines& lines, const Body& body) {
  const int per_block = block_threads / lines.group,
            own = static_cast<int>(threadIdx.x) / lines.group,
            lane = static_cast<int>(threadIdx.x) % lines.group;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * per_block;
       first < lines.starts.units; first += static_cast<std::int64_t>(gridDim.x) * per_block) {
    const bool valid = first + own < lines.starts.units;
    body(lines.starts.place<K>(valid ? first + own : first), lane, valid);
  }
}

}  // namespace tutti::kernels::cuda
