// This file holds the reductions of batch-norm kernels over the threads of a block and the blocks
// of a launch. All sums have a fixed order for a fixed launch.
#pragma once

#include "../batch_norm_math.h"
#include "vector.h"

namespace tutti::kernels::cuda {

/// Writes the header of a packet. Only one thread may call it.
__device__ inline void put_header(double* packet, PacketHeader header, double count,
                                  double count_low) {
  header.count = count;
  header.count_low = count_low;
  header_of(packet) = header;
}

/// Writes a header to memory of the host. Only one thread may call it.
__device__ inline void put_report(HeaderReport* report, const PacketHeader& header) {
  report->header = header;
  __threadfence_system();  // The host reads the header when it sees the flag.
  *const_cast<volatile std::uint64_t*>(&report->arrived) = 1;
}

/// Sums v over the `down` threads of each column. The threads of row 0 receive the result.
/// `scratch` has room for K * across * ceil(down / 2) numbers. Every thread of the block must call
/// it.
template <int K>
__device__ void sum_down(double (&v)[K], int x, int y, int across, int down, double* scratch) {
  for (int high = down; high > 1;) {
    const int half = (high + 1) / 2, stride = half * across;
    if (y >= half && y < high) {
#pragma unroll
      for (int k = 0; k < K; ++k) scratch[k * stride + (y - half) * across + x] = v[k];
    }
    __syncthreads();
    if (y + half < high) {
#pragma unroll
      for (int k = 0; k < K; ++k) v[k] += scratch[k * stride + y * across + x];
    }
    __syncthreads();
    high = half;
  }
}

/// Returns true in all threads of the block that is the last of `blocks` blocks to call it. That
/// block then sees all global writes that the other blocks made before their calls. The counter
/// must be 0 before the first call and is 0 again after the last.
__device__ inline bool is_last(unsigned* counter, unsigned blocks, int* flag) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) *flag = atomicInc(counter, blocks - 1) == blocks - 1;
  __syncthreads();
  const bool last = *flag != 0;
  __threadfence();
  __syncthreads();
  return last;
}

/// The workspace for the partial results of blocks, from which the final result is reduced.
struct Partials {
  double2* values = nullptr;     ///< Shape [chunk][channel].
  double* counts = nullptr;      ///< Shape [tile][chunk]; used for moments only.
  unsigned* counters = nullptr;  ///< Counter 0 counts tiles; counter 1 + t counts chunks of tile t.
};

/// Sums the partial values of the channels [channel, channel + width) over all chunks and calls
/// put(channel, first, second) once for each channel. Every thread of the block must call it.
template <class Put>
__device__ void sum_chunks(const double2* values, int chunks, std::int64_t channels,
                           std::int64_t channel, int width, double* scratch, const Put& put) {
  const int x = static_cast<int>(threadIdx.x) % width, y = static_cast<int>(threadIdx.x) / width;
  const int down = static_cast<int>(blockDim.x) / width;
  double v[2] = {0, 0};
  if (y < down && channel + x < channels) {
#pragma unroll 8
    for (int k = y; k < chunks; k += down) {
      const double2 part = __ldcg(values + k * channels + channel + x);
      v[0] += part.x, v[1] += part.y;
    }
  }
  sum_down(v, x, y, width, down, scratch);
  if (y == 0 && channel + x < channels) put(channel + x, v[0], v[1]);
}

/// Merges the partial moments (count n_i, mean, M2_i) of the channels [channel, channel + width)
/// over all chunks and calls put(channel, count, moments) once for each channel. It uses Chan's
/// formula for many sets, M2 = sum(M2_i + n_i d_i^2) - (sum n_i d_i)^2 / n, where d_i is the mean
/// of chunk i minus a pivot. The pivot is the mean of the first chunk that is not empty. Every
/// thread of the block must call it.
template <class Put>
__device__ void merge_chunks(const double2* values, const double* counts, int chunks,
                             std::int64_t channels, std::int64_t channel, int width,
                             double* scratch, const Put& put) {
  const int x = static_cast<int>(threadIdx.x) % width, y = static_cast<int>(threadIdx.x) / width;
  const int down = static_cast<int>(blockDim.x) / width;
  const bool live = y < down && channel + x < channels;
  double v[3] = {0, 0, 0}, pivot = 0;
  if (live) {
    int first = 0;
    while (first + 1 < chunks && __ldcg(counts + first) == 0) ++first;
    pivot = __ldcg(values + first * channels + channel + x).x;
#pragma unroll 8
    for (int k = y; k < chunks; k += down) {
      const double n = __ldcg(counts + k);
      const double2 part = __ldcg(values + k * channels + channel + x);
      const double d = n == 0 ? 0 : part.x - pivot;
      v[0] += n, v[1] += n * d, v[2] += part.y + n * d * d;
    }
  }
  sum_down(v, x, y, width, down, scratch);
  if (y != 0 || !live) return;
  put(channel + x, v[0], moments_around(pivot, v[0], v[1], v[2]));
}

}  // namespace tutti::kernels::cuda
