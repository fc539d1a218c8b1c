// This file computes y = max(0, (x - center) scale + shift + residual) in one pass; residual and
// ReLU are optional. The pass runs from the end of the tensor to its beginning, because the
// preceding pass has left the end in the L2 cache. If there is a residual and a ReLU, the pass also
// writes the mask of the ReLU.
//
// Across ranks the same launch finalizes the statistics: every block computes those of its channels
// from the packet, and the first block of each tile writes them and moves the running statistics.
#include "batch_norm_passes.h"
#include "batch_norm_statistics.h"
#include "block_counters.h"

namespace tutti::kernels::cuda {
namespace {

// The statistics that a launch finalizes before it applies them.
struct Finalization {
  StatisticsPacket from;
  Statistics to;
  unsigned* finished_tiles = nullptr;  // counts them; null if there are no running statistics
  HeaderReport* report = nullptr;
};

// Computes the output coefficients of a block's channels, [channel, channel + width), from the
// packet and stores them in shared memory. The first block of a tile also writes all that
// `Statistics` asks for. Every thread of the block must call it; `flag` is in shared memory.
template <class A>
__device__ void finalize_channels(Finalization of, const Channels& parameters, A* shared,
                                  std::int64_t channel, int width, int* flag) {
  const bool is_first = blockIdx.y == 0;
  // The other blocks may run after the counters have been advanced.
  const Counters before = is_first ? read_counters(of.to) : Counters{};
  check_ranks(of.from, of.to);
  const DoubleDouble count = count_of(of.from);
  const double n = count.high;
  share_channels<3>(shared, channel, width, of.to.channels, [&](std::int64_t c, A* values) {
    const ChannelMoments moments = get_moments(of.from, count, of.to.channels, c);
    if (is_first) put_statistics(of.to, before, c, n, moments);
    put_output_coefficients(moments.mean, rstd_of(n > 0 ? moments.m2 * (1 / n) : 0, of.to.eps),
                            parameters.weight[c], parameters.bias[c], values);
  });
  if (!is_first) return;
  if (of.report != nullptr && blockIdx.x == 0 && threadIdx.x == 0)
    put_report(of.report, header_of(of.from.data));
  if (of.finished_tiles == nullptr) return;
  // The last tile to finish advances the counters, because every first block has read them by then.
  if (is_last(of.finished_tiles, gridDim.x, flag) && threadIdx.x == 0)
    put_counters(of.to, before, n);
}

template <class T, bool rows, bool aligned, bool add>
__global__ __launch_bounds__(threads_of<rows>,
                             rows ? 2 : 4) void apply_kernel(const T* x, const T* residual, T* y,
                                                             std::uint8_t* mask, Channels of,
                                                             bool relu, Geometry g,
                                                             Finalization finalization) {
  using A = Accumulate<T>;
  constexpr int V = full_width<T>, U = batch_of<(add ? 3 : 2), aligned>, K = rows ? V : 1;
  A* shared = tutti::cuda::dynamic_shared<A>();
  const int width = g.across * K;
  const std::int64_t channel = first_channel<V, rows>(g, g.channels - 1 - blockIdx.x);
  if (finalization.from.data != nullptr)
    finalize_channels(finalization, of, shared, channel, width,
                      reinterpret_cast<int*>(shared + 3 * width));
  else
    share_channels<3>(shared, channel, width, g.channels, [&](std::int64_t c, A* values) {
      put_output_coefficients(of.mean[c], of.rstd[c], of.weight[c], of.bias[c], values);
    });
  // It stands here so that it holds no registers while the statistics are computed.
  VectorIterator<V, rows, aligned> vectors(g, static_cast<int>(blockIdx.x),
                                           static_cast<int>(blockIdx.y), g.chunks, true);
  if (vectors.count == 0) return;
  const Affine<A, K> f(shared, width, g.across);
  for (std::int64_t left = vectors.count; left > 0; left -= U) {
    const int live = left < U ? static_cast<int>(left) : U;
    Pack<T, V> packs[U], residuals[U];
    Span spans[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= live) continue;
      spans[u] = vectors.span();
      packs[u] = load<T, V, aligned>(x, spans[u]);
      if constexpr (add) residuals[u] = load<T, V, aligned>(residual, spans[u]);
      vectors.next();
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= live) continue;
      A result[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int k = rows ? v : 0;
        A z = (packs[u][v] - f.center[k]) * f.scale[k] + f.shift[k];
        if constexpr (add) z += residuals[u][v];
        result[v] = relu && z < A(0) ? A(0) : z;  // NaN stays NaN.
      }
      const auto output = Pack<T, V>::of(result);
      store<T, V, aligned>(y, spans[u], output);
      if constexpr (add)
        if (mask != nullptr) mask[vectors.byte(spans[u])] = mask_byte(output, spans[u]);
    }
  }
}

// Launches the kernel, which has work to do without elements, too, if it finalizes statistics.
void launch_apply(const Tensor& x, const Normalization& to, const Tensor& y,
                  const Finalization& finalization) {
  with_layout(x, {y, to.residual}, [&]<class T, bool rows, bool aligned>() {
    const int batch = to.residual.defined() ? batch_of<3, aligned> : batch_of<2, aligned>;
    const Geometry g = cut<full_width<T>>(x, rows, batch, rows ? 2 : 4);
    const tutti::cuda::Grid grid{.blocks = blocks_of(g),
                                 .threads = threads_of<rows>,
                                 .shared_bytes = shared_bytes<T, rows>(g, 3) + sizeof(int)};
    const T *from = static_cast<const T*>(x.raw()),
            *add = to.residual.defined() ? static_cast<const T*>(to.residual.raw()) : nullptr;
    T* out = static_cast<T*>(y.raw());
    const auto kernel = add ? apply_kernel<T, rows, aligned, true>
                            : apply_kernel<T, rows, aligned, false>;
    tutti::cuda::launch("batch_norm apply", kernel, grid, from, add, out, mask_of(to),
                        channels_of(to), to.relu, g, finalization);
  });
}

}  // namespace

void batch_norm_apply(const Tensor& x, const Normalization& to, const Tensor& y) {
  if (x.numel() == 0) return;
  const tutti::cuda::DeviceScope scope(x.device().index());
  launch_apply(x, to, y, {});
}

void batch_norm_finalize_and_apply(const ForwardFromSums& of) {
  const int device = of.x.device().index();
  const tutti::cuda::DeviceScope scope(device);
  const Normalization& to = of.normalization;
  Finalization finalization{
      .from = packet_of(of.sums, of.moments),
      .to = statistics_of(of.moments, of.x.size(1), of.update, to.mean, to.rstd),
      .report = of.report};
  // Other blocks still read the packet while the first ones write.
  if (!of.sums.defined()) finalization.to.moments = nullptr;
  if (finalization.to.running_mean != nullptr) finalization.finished_tiles = block_counters(device);
  launch_apply(of.x, to, of.y, finalization);
}

}  // namespace tutti::kernels::cuda
