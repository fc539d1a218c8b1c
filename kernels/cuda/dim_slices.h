// DimSlices divides tensors into slices along one dimension, each of which is processed by a group
// of threads. The group is one thread if neighbouring slices are adjacent in memory, and a warp or
// a whole block if the elements of a slice are.
#pragma once

#include "element.h"

#include <vector>

namespace tutti::kernels::cuda {

constexpr int warp_threads = 32, block_warps = block_threads / warp_threads;

/// A tensor of which every slice is visited as a whole. `starts` is the tensor without the
/// dimension of the slices.
struct SlicedTensor {
  Tensor starts;
  std::int64_t length, stride;

  SlicedTensor(const Tensor& x, int dim) : length(x.shape()[dim]), stride(x.strides()[dim]) {
    Shape shape = x.shape();
    Strides strides = x.strides();
    shape.erase(dim);
    strides.erase(dim);
    starts = x.alias(shape, strides, x.offset());
  }
};

struct DimSlices {
  OffsetCalculator starts;  ///< Computes the start of each slice; one unit is one slice.
  std::int64_t length;
  int group;  ///< The number of threads for each slice: 1, 32 or all threads of a block.

  /// The first tensor decides how slices are read. `others` have the shape of its `starts`.
  DimSlices(const SlicedTensor& first, std::initializer_list<const Tensor*> others)
      : starts(join(first.starts, others), false), length(first.length), group(1) {
    const bool dense = first.stride == 1 || starts.units < 4096;
    if (dense && length > 1) group = length >= 2048 ? block_threads : warp_threads;
  }
  tutti::cuda::Grid grid(int device) const { return grid_for(starts.units * group, device); }

 private:
  static std::vector<const Tensor*> join(const Tensor& first,
                                         std::initializer_list<const Tensor*> others) {
    std::vector<const Tensor*> all{&first};
    all.insert(all.end(), others);
    return all;
  }
};

/// Reduces the values of all threads of a group with `combine`, in a fixed order, and returns the
/// result to every thread of the group. All threads of the block must call it.
template <class A, class Combine>
__device__ inline A reduce_over_group(A value, int group, const Combine& combine) {
  if (group == 1) return value;
  for (int step = warp_threads / 2; step > 0; step /= 2)
    value = combine(value, __shfl_xor_sync(~0u, value, step));
  if (group == warp_threads) return value;
  __shared__ A of_warps[block_warps];
  if (threadIdx.x % warp_threads == 0) of_warps[threadIdx.x / warp_threads] = value;
  __syncthreads();
  A total = of_warps[0];
  for (int w = 1; w < block_warps; ++w) total = combine(total, of_warps[w]);
  __syncthreads();  // The next call must not overwrite the result before all have read it.
  return total;
}

template <class A>
__device__ inline A sum_over_group(A value, int group) {
  return reduce_over_group(value, group, [](A a, A b) { return a + b; });
}

/// The calling thread's part in a slice.
template <int K>
struct SliceWork {
  Offsets<K> offsets;  ///< The offset at which the slice starts in each tensor.
  int lane;            ///< The index of the thread in its group.
  /// False for threads without a slice, which only take part in synchronisation of the whole block.
  /// Their offsets are those of another slice.
  bool valid;
};

/// Calls body(const SliceWork<K>&) for every slice, equally often in all threads of a block.
template <int K, class Body>
__device__ inline void for_each_slice(const DimSlices& slices, const Body& body) {
  const int per_block = block_threads / slices.group,
            own = static_cast<int>(threadIdx.x) / slices.group,
            lane = static_cast<int>(threadIdx.x) % slices.group;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * per_block;
       first < slices.starts.units; first += static_cast<std::int64_t>(gridDim.x) * per_block) {
    const bool valid = first + own < slices.starts.units;
    body(SliceWork<K>{slices.starts.offsets<K>(valid ? first + own : first), lane, valid});
  }
}

/// The address of a tensor of slices, and the stride between the elements of a slice.
struct SlicePointer {
  TypedPointer tensor;
  std::int64_t stride;

  SlicePointer(const Tensor& x, int dim) : tensor(x), stride(x.strides()[dim]) {}
  /// Element i of the slice that starts at `start`.
  template <class C>
  __device__ C load(std::int64_t start, std::int64_t i) const {
    return load_one<C>(tensor, start + i * stride);
  }
  template <class C>
  __device__ void store(std::int64_t start, std::int64_t i, C value) const {
    store_one(tensor, start + i * stride, value);
  }
};

}  // namespace tutti::kernels::cuda
