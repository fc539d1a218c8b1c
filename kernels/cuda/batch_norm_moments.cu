// This file computes count, mean and M2 of every channel in one pass over x and one launch. The
// last block of each tile to finish merges the moments of all blocks of that tile.
//
// A thread sums a run of elements in float32 as deviations from a shift. It then adds the run to
// float64 sums around the same shift and moves the shift to the mean of all elements so far. Only
// deviations from a value near the mean are squared, so a large mean costs no precision. The first
// shift is a single value (in planes, the mean of one vector). If that value is an outlier at
// distance k from the mean, it adds k^2 to M2 itself, and the first run, which is only one batch
// long, loses at most one rounding of k^2 per row. Sums of several threads are merged by Chan's
// formula (Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances", 1979) in float64.
#include "batch_norm_statistics.h"
#include "workspace.h"

namespace tutti::kernels::cuda {
namespace {

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

/// Returns the number of doubles of scratch memory that block_moments() needs, if each thread of
/// the block has K channels.
constexpr int moments_scratch(int K, int across, int down) {
  return 2 + across * K + (2 * K + 1) * across * ((down + 1) / 2);
}

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

// Adds the calling thread's vectors to `sums`.
template <class T, bool rows, bool aligned, bool weighted>
__device__ void sum_vectors(VectorIterator<full_width<T>, rows, aligned> vectors, const T* x,
                            const Values& weights,
                            ShiftedSums<Accumulate<T>, full_width<T>, rows>& sums) {
  constexpr int V = full_width<T>, U = weighted ? 3 : batch_of<1>;
  for (std::int64_t left = vectors.count; left > 0; left -= U) {
    const int live = left < U ? static_cast<int>(left) : U;
    Pack<T, V> packs[U];
    Span spans[U];
    std::int64_t positions[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= live) continue;
      spans[u] = vectors.span();
      if constexpr (weighted) positions[u] = vectors.position(spans[u]);
      packs[u] = load<T, V, aligned>(x, spans[u]);
      vectors.next();
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= live) continue;
      if constexpr (weighted) sums.add_weighted(packs[u], spans[u], weights, positions[u]);
      else sums.add(packs[u], spans[u]);
    }
    sums.end_batch();
  }
}

template <class T, bool rows, bool aligned, bool weighted>
__global__ __launch_bounds__(threads_of<rows>,
                             rows ? 1 : 2) void moments_kernel(const T* x, Values weights,
                                                               Geometry g, Partials partials,
                                                               Statistics to) {
  using A = Accumulate<T>;
  constexpr int V = full_width<T>, K = rows ? V : 1;
  double* scratch = tutti::cuda::dynamic_shared<double>();
  const int tile = static_cast<int>(blockIdx.x), chunk = static_cast<int>(blockIdx.y);
  const VectorIterator<V, rows, aligned> vectors(g, tile, chunk, g.chunks, false);
  ShiftedSums<A, V, rows> sums;
  sum_vectors<T, rows, aligned, weighted>(vectors, x, weights, sums);
  double n;
  ChannelMoments moments[K];
  block_moments(sums, g.across, g.down, scratch, n, moments);
  const std::int64_t channel = (static_cast<std::int64_t>(tile) * g.across + threadIdx.x) * K;
  const Counters before = read_counters(to);
  // Only the threads of row 0 have the block's moments.
  const std::int64_t end = static_cast<int>(threadIdx.x) < g.across ? g.channels : 0;
  if (g.chunks == 1) {
    for (int k = 0; k < K; ++k)
      if (channel + k < end) put_statistics(to, before, channel + k, n, moments[k]);
  } else {
    for (int k = 0; k < K; ++k)
      if (channel + k < end)
        partials.values[chunk * g.channels + channel + k] = {moments[k].mean, moments[k].m2};
    if (threadIdx.x == 0) partials.counts[tile * g.chunks + chunk] = n;
    int* flag = reinterpret_cast<int*>(scratch);
    if (!is_last(partials.counters + 1 + tile, g.chunks, flag)) return;
    const std::int64_t first = static_cast<std::int64_t>(tile) * g.across * K;
    merge_chunks(partials.values, partials.counts + tile * g.chunks, g.chunks, g.channels, first,
                 g.across * K, scratch, [&](std::int64_t c, double count, ChannelMoments of_all) {
                   put_statistics(to, before, c, count, of_all);
                   if (c == first) scratch[0] = count;  // It is read after the barrier.
                 });
    __syncthreads();
    n = scratch[0];
  }
  if (to.running_mean == nullptr) return;
  // The last tile to finish advances the counters, because every block has read them by then.
  const double count = n;
  if (is_last(partials.counters, g.tiles, reinterpret_cast<int*>(scratch)) && threadIdx.x == 0)
    put_counters(to, before, count);
}

}  // namespace

void launch_moments(const Tensor& x, const Tensor& weights, const Statistics& to) {
  with_layout(x, {}, [&]<class T, bool rows, bool aligned>() {
    constexpr int V = full_width<T>;
    const Geometry g = cut<V>(x, rows, batch_of<1>, rows ? 1 : 2);
    constexpr int K = rows ? V : 1;
    const Workspace workspace(x.device(), g.chunks > 1 ? g.chunks * g.channels : 0,
                              g.chunks > 1 ? g.chunks * g.tiles : 0);
    const tutti::cuda::Grid grid{
        .blocks = blocks_of(g),
        .threads = threads_of<rows>,
        .shared_bytes = sizeof(double) * moments_scratch(K, g.across, g.down)};
    const Values of_position = values_of(weights, 1);
    const T* from = static_cast<const T*>(x.raw());
    const auto kernel = weights.defined() ? moments_kernel<T, rows, aligned, true>
                                          : moments_kernel<T, rows, aligned, false>;
    tutti::cuda::launch("batch_norm moments", kernel, grid, from, of_position, g,
                        workspace.partials(), to);
  });
}

}  // namespace tutti::kernels::cuda
