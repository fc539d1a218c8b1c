// The sums of one thread over the values of one or more channels, from which moments are made; both
// the streaming and the persistent kernels go by it.
//
// Runs are summed in float32 as deviations from a shift and folded into float64 sums around the
// same shift, which then moves to the mean so far. Only deviations from a value near the mean are
// ever squared, so a large mean costs nothing. The first shift is one value (in planes, the mean of
// one vector): an outlier there, k away, adds k^2 to the M2 that is looked for, and the first run
// is only one batch, of which it can cost as many roundings of k^2 as it has rows. Merging is
// Chan's formula (Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing
// sample variances", 1979) in float64.
#pragma once

#include "batch_norm_device.h"

namespace tutti::kernels::cuda {

constexpr int batches_in_run = 8;

template <class A, int V, bool rows>
struct ShiftedSums {
  static constexpr int K = rows ? V : 1;  ///< channels: V of a row, or the one of a plane

  A shift[K], sum[V], square[V];  ///< of the run, around `shift`
  double total[K], squares[K];    ///< of everything before it, around the same shift
  double n = 0, run = 0;          ///< elements per channel (or their weights)
  int until_fold = 1;
  bool started = false;

  __device__ ShiftedSums() {
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] = square[v] = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) shift[k] = 0, total[k] = squares[k] = 0;
  }

  template <class T>
  __device__ void add(const Pack<T, V>& pack, const Span& s) {
    if (!started) start(pack, s);
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (rows || (v >= s.first && v < s.last)) put(v, pack[v], A(1));
    run += rows ? 1 : s.last > s.first ? s.last - s.first : 0;
  }
  template <class T>
  __device__ void start(const Pack<T, V>& pack, const Span& s) {
    if constexpr (rows) {
#pragma unroll
      for (int v = 0; v < V; ++v) shift[v] = pack[v];
      started = true;
    } else {  // the mean of the vector, as deviations from its first value, so that equal values
              // have themselves as mean
      A first = 0, rest = 0;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if (v == s.first) first = pack[v];
        if (v >= s.first && v < s.last) rest += pack[v] - first;
      }
      started = s.last > s.first;
      if (started) shift[0] = first + rest / static_cast<A>(s.last - s.first);
    }
  }
  /// Lane v of a plane, or one row, weighs `w`, not 0.
  __device__ void put(int v, A x, A w) {
    const A d = x - shift[rows ? v : 0], wd = w * d;
    sum[v] += wd;
    square[v] += wd * d;
  }
  template <class T>
  __device__ void add_weighted(const Pack<T, V>& pack, const Span& s, const Values& weights,
                               std::int64_t position) {
    const double of_row = rows ? weights[position] : 0;
    bool first = !started;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const bool mine = rows || (v >= s.first && v < s.last);
      const double w = rows ? of_row : mine ? weights[position + v] : 0;
      if (!(w != 0)) continue;  // x may be anything there
      if (first) shift[rows ? v : 0] = pack[v];
      if (!rows) first = false, run += w;
      put(v, pack[v], static_cast<A>(w));
      started = true;
    }
    if (rows) run += of_row;
  }

  /// To be called after each batch.
  __device__ void end_batch() {
    if (--until_fold > 0) return;
    until_fold = batches_in_run;
    fold();
  }
  __device__ void fold() {
    n += run;
    run = 0;
    if (!(n > 0)) return;
    const double per_n = static_cast<double>(A(1) / static_cast<A>(n));
#pragma unroll
    for (int k = 0; k < K; ++k) {
      A s = sum[k], q = square[k];
      if constexpr (!rows) {
#pragma unroll
        for (int v = 1; v < V; ++v) s += sum[v], q += square[v];
      }
      total[k] += static_cast<double>(s);
      squares[k] += static_cast<double>(q);
      const A next = static_cast<A>(static_cast<double>(shift[k]) + total[k] * per_n);
      move(k, static_cast<double>(shift[k]) - static_cast<double>(next));
      shift[k] = next;
    }
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] = square[v] = 0;
  }
  /// From sums around s to sums around s - by.
  __device__ void move(int k, double by) {
    squares[k] += by * (2 * total[k] + n * by);
    total[k] += n * by;
  }
};

/// Numbers of scratch that block_moments needs.
template <int K>
constexpr int moments_scratch(int across, int down) {
  return 2 + across * K + (2 * K + 1) * across * ((down + 1) / 2);
}

/// The moments of the channels of a block, in the threads of row 0. All sums move to the shift of
/// the first row that has any element; then they add up. Every thread of the block calls it.
template <class A, int V, bool rows>
__device__ void block_moments(ShiftedSums<A, V, rows>& of, int across, int down, double* scratch,
                              double& n, ChannelMoments (&moments)[rows ? V : 1]) {
  constexpr int K = rows ? V : 1;
  const int x = static_cast<int>(threadIdx.x) % across, y = static_cast<int>(threadIdx.x) / across;
  int* lowest = reinterpret_cast<int*>(scratch);
  double *pivots = scratch + 2, *tree = pivots + across * K;
  of.fold();
  __syncthreads();
  if (threadIdx.x == 0) *lowest = 0;
  __syncthreads();
  if (x == 0 && y < down && of.n > 0) atomicMax(lowest, down - y);
  __syncthreads();
  if (y == down - *lowest && y < down) {
#pragma unroll
    for (int k = 0; k < K; ++k) pivots[x * K + k] = static_cast<double>(of.shift[k]);
  }
  __syncthreads();
  const bool any = y < down && of.n > 0;
  double v[2 * K + 1];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (any) of.move(k, static_cast<double>(of.shift[k]) - pivots[x * K + k]);
    v[k] = any ? of.total[k] : 0;
    v[K + k] = any ? of.squares[k] : 0;
  }
  v[2 * K] = any ? of.n : 0;
  sum_down(v, x, y, across, down, tree);
  n = v[2 * K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    moments[k] = moments_around(pivots[x * K + k], n, v[k], v[K + k]);
  }
}

}  // namespace tutti::kernels::cuda
