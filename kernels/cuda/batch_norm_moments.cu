// This file computes count, mean and M2 of every channel in one pass over x and one launch. The
// last block of each tile to finish merges the moments of all blocks of that tile.
#include "batch_norm_moments.h"
#include "batch_norm_statistics.h"
#include "workspace.h"

namespace tutti::kernels::cuda {
namespace {

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
