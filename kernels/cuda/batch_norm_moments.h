// ShiftedSums computes the moments of the elements that one thread visits. The streaming and the
// persistent kernels both use it.
//
// A thread sums a run of elements in float32 as deviations from a shift. It then adds the run to
// float64 sums around the same shift and moves the shift to the mean of all elements so far. Only
// deviations from a value near the mean are squared, so a large mean costs no precision. The first
// shift is a single value (in planes, the mean of one vector). If that value is an outlier at
// distance k from the mean, it adds k^2 to M2 itself, and the first run, which is only one batch
// long, loses at most one rounding of k^2 per row. Sums of several threads are merged by Chan's
// formula (Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances", 1979) in float64.
#pragma once

#include "batch_norm_channels.h"
#include "batch_norm_geometry.h"
#include "batch_norm_reduction.h"

namespace tutti::kernels::cuda {

constexpr int batches_in_run = 8;

/// The sums of one thread over V elements at a time, in the accumulation type A.
template <class A, int V, bool rows>
struct ShiftedSums {
  static constexpr int K = rows ? V : 1;  ///< The number of channels: V in rows, 1 in planes.

  A shift[K], sum[V], square[V];  ///< The sums of the current run around `shift`.
  double total[K], squares[K];    ///< The sums of all earlier runs around the same shift.
  double n = 0, run = 0;          ///< Elements (or weights) per channel, of earlier runs and this.
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
    } else {
      // The shift is the mean of the vector. It is computed from deviations from the first value,
      // so that the mean of equal values is exact.
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
  /// Adds x in lane v with the weight w, which must not be 0.
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
      if (!(w != 0)) continue;  // x may be NaN where the weight is 0.
      if (first) shift[rows ? v : 0] = pack[v];
      if (!rows) first = false, run += w;
      put(v, pack[v], static_cast<A>(w));
      started = true;
    }
    if (rows) run += of_row;
  }

  /// Ends a batch. The caller must call it after each batch of vectors.
  __device__ void end_batch() {
    if (--until_fold > 0) return;
    until_fold = batches_in_run;
    fold();
  }
  /// Adds the current run to the float64 sums and moves the shift to the mean so far.
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
  /// Converts the sums of channel k around a shift s into sums around s - by.
  __device__ void move(int k, double by) {
    squares[k] += by * (2 * total[k] + n * by);
    total[k] += n * by;
  }
};

/// Merges the sums of a block's threads into the moments of its channels. The threads of row 0
/// receive the results. All sums are first moved to the shift of the first thread row that has any
/// elements; then they can simply be added. Every thread of the block must call it, and a barrier
/// must lie between an earlier use of `scratch` and the call.
template <class A, int V, bool rows>
__device__ void block_moments(ShiftedSums<A, V, rows>& of, int across, int down, double* scratch,
                              double& n, ChannelMoments (&moments)[rows ? V : 1]) {
  constexpr int K = rows ? V : 1;
  const int x = static_cast<int>(threadIdx.x) % across, y = static_cast<int>(threadIdx.x) / across;
  int* lowest = reinterpret_cast<int*>(scratch);
  double *pivots = scratch + 2, *tree = pivots + across * K;
  of.fold();
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
