// This file computes the gradient sums of every channel in one pass and one launch. The same pass
// writes the gradient below the ReLU if the caller wants it. The last block of each tile writes the
// gradients of weight and bias.
#include "batch_norm_gradient.h"
#include "batch_norm_passes.h"
#include "workspace.h"

namespace tutti::kernels::cuda {
namespace {

// The number of vectors of dy and of x that a thread loads at a time. With three of each, 48 KB per
// multiprocessor are in flight; there are no registers for a fourth.
template <bool aligned>
constexpr int batch = aligned ? 3 : batch_of<2, false>;

// Sums the calling thread's vectors around the rounded mean, and writes the gradient below the ReLU
// if the caller wants it. That gradient comes from dy and the mask, or by the rules from dy and x.
template <class T, bool rows, bool aligned, bool from_mask>
__device__ void sum_gradients(VectorIterator<full_width<T>, rows, aligned> vectors, const T* dy,
                              const T* x, const std::uint8_t* mask, T* masked, GradRules rules,
                              const Affine<Accumulate<T>, rows ? full_width<T> : 1>& f,
                              GradSums<Accumulate<T>, full_width<T>, rows>& sums) {
  using A = Accumulate<T>;
  constexpr int V = full_width<T>, U = batch<aligned>;
  for (std::int64_t left = vectors.count; left > 0; left -= U) {
    const int live = left < U ? static_cast<int>(left) : U;
    Pack<T, V> gradients[U], packs[U];
    unsigned passed[U];
    Span spans[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= live) continue;
      spans[u] = vectors.span();
      gradients[u] = load<T, V, aligned>(dy, spans[u]);
      packs[u] = load<T, V, aligned>(x, spans[u]);
      passed[u] = from_mask ? mask[vectors.byte(spans[u])] : 0;
      vectors.next();
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= live) continue;
      A result[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int k = rows ? v : 0;
        const A x_v = packs[u][v];
        const A dy_v = gradients[u][v];
        const A g_v = masked_gradient<from_mask>(dy_v, x_v, passed[u], v, f.center[k], f.scale[k],
                                                 f.shift[k], rules.relu);
        if (rows || (v >= spans[u].first && v < spans[u].last))
          sums.add(v, g_v, x_v - f.center[k], rules.weighted);
        result[v] = g_v;
      }
      sums.end_vector();
      if (masked != nullptr) store<T, V, aligned>(masked, spans[u], Pack<T, V>::of(result));
    }
  }
}

template <class T, bool rows, bool aligned, bool from_mask>
__global__ __launch_bounds__(threads_of<rows>, rows ? 1 : 2) void gradient_sums_kernel(
    const T* dy, const T* x, const std::uint8_t* mask, T* masked, Channels of, GradRules rules,
    Geometry g, Partials partials, GradTargets to) {
  using A = Accumulate<T>;
  constexpr int V = full_width<T>, K = rows ? V : 1;
  double* scratch = tutti::cuda::dynamic_shared<double>();
  const int tile = static_cast<int>(blockIdx.x), chunk = static_cast<int>(blockIdx.y);
  const VectorIterator<V, rows, aligned> vectors(g, tile, chunk, g.chunks, false);
  A* shared = reinterpret_cast<A*>(scratch);
  const int width = g.across * K;
  share_channels<3>(shared, static_cast<std::int64_t>(tile) * width, width, g.channels,
                    [&](std::int64_t c, A* values) {
                      put_output_coefficients(of.mean[c], of.rstd[c], of.weight[c], of.bias[c],
                                              values);
                    });
  GradSums<A, V, rows> sums;
  if (vectors.count > 0) {
    const Affine<A, K> f(shared, width, g.across);
    sum_gradients<T, rows, aligned, from_mask>(vectors, dy, x, mask, masked, rules, f, sums);
  }
  sums.fold();
  __syncthreads();  // sum_down overwrites the per-channel numbers in shared memory.
  const int x_thread = static_cast<int>(threadIdx.x) % g.across,
            y_thread = static_cast<int>(threadIdx.x) / g.across;
  sum_down(sums.totals, x_thread, y_thread, g.across, g.down, scratch);
  const std::int64_t channel = (static_cast<std::int64_t>(tile) * g.across + x_thread) * K;
  const std::int64_t end = y_thread == 0 ? g.channels : 0;
  if (g.chunks == 1) {
    for (int k = 0; k < K; ++k)
      if (channel + k < end) put_grad_sums<A>(to, channel + k, sums.totals[k], sums.totals[K + k]);
    return;
  }
  for (int k = 0; k < K; ++k)
    if (channel + k < end)
      partials.values[chunk * g.channels + channel + k] = {sums.totals[k], sums.totals[K + k]};
  if (!is_last(partials.counters + 1 + tile, g.chunks, reinterpret_cast<int*>(scratch))) return;
  sum_chunks(partials.values, g.chunks, g.channels, static_cast<std::int64_t>(tile) * g.across * K,
             g.across * K, scratch, [&](std::int64_t c, double first, double second) {
               put_grad_sums<A>(to, c, first, second);
             });
}

}  // namespace

void batch_norm_gradient_sums(const GradientSums& arguments) {
  const auto& [dy, saved, header, sums, masked_dy, weight_grad, bias_grad] = arguments;
  const tutti::cuda::DeviceScope scope(dy.device().index());
  const Normalization& n = saved.normalization;
  const bool from_mask = n.relu && n.residual.defined();
  with_layout(saved.x, {dy, masked_dy}, [&]<class T, bool rows, bool aligned>() {
    constexpr int K = rows ? full_width<T> : 1;
    const Geometry g = cut<full_width<T>>(saved.x, rows, batch<aligned>, rows ? 1 : 2);
    const Workspace workspace(dy.device(), g.chunks > 1 ? g.chunks * g.channels : 0, 0);
    const std::size_t scratch =
        static_cast<std::size_t>(K * g.across * std::max(3, 2 * ((g.down + 1) / 2)) + 2);
    const tutti::cuda::Grid grid{.blocks = blocks_of(g),
                                 .threads = threads_of<rows>,
                                 .shared_bytes = sizeof(double) * scratch};
    const auto at = [](const Tensor& t) {
      return t.defined() ? static_cast<T*>(t.raw()) : nullptr;
    };
    const GradTargets to{g.channels,
                         sums.data<double>(),
                         n.mean.data<double>(),
                         n.rstd.data<double>(),
                         target_of(weight_grad),
                         target_of(bias_grad),
                         header};
    const auto kernel = from_mask ? gradient_sums_kernel<T, rows, aligned, true>
                                  : gradient_sums_kernel<T, rows, aligned, false>;
    tutti::cuda::launch("batch_norm gradient_sums", kernel, grid, at(dy), at(saved.x), mask_of(n),
                        at(masked_dy), channels_of(n), GradRules{n.relu, saved.weighted}, g,
                        workspace.partials(), to);
  });
}

}  // namespace tutti::kernels::cuda
