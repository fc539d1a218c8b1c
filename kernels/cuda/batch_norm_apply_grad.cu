// This file computes dx in one pass from the end of the tensor to its beginning, for the reason
// given in batch_norm_apply.cu. dx may be the same tensor as dy, because each thread reads an
// element before it writes it.
#include "batch_norm_gradient.h"
#include "batch_norm_passes.h"

namespace tutti::kernels::cuda {
namespace {

// Computes the six coefficients of channel c: three of the output, whose sign tells whether the
// ReLU passed an element, and three of dx.
template <class A>
__device__ void put_coefficients(const Channels& of, const GradSources& from, std::int64_t channels,
                                 std::int64_t c, A* values) {
  put_output_coefficients(of.mean[c], of.rstd[c], of.weight[c], of.bias[c], values);
  const double n = from.sums ? from.moments[0] : 0;
  const double *sums = from.sums + packet_header_size + c,
               *m2 = from.moments + packet_header_size + channels + c;
  const ChannelSums of_all{n > 0 ? sums[0] : 0, n > 0 ? sums[channels] : 0};
  put_gradient_coefficients(of.mean[c], of.rstd[c], of.weight[c], n, of_all, n > 0 ? *m2 : 0,
                            from.floor, values + 3);
}

template <class T, bool rows, bool aligned, bool from_mask>
__global__ __launch_bounds__(threads_of<rows>, rows ? 1 : 2) void apply_grad_kernel(
    const T* dy, const T* x, const std::uint8_t* mask, T* dx, Channels of, GradRules rules,
    GradSources from, Values weights, Geometry g) {
  using A = Accumulate<T>;
  constexpr int V = full_width<T>, U = batch_of<2, aligned>, K = rows ? V : 1;
  VectorIterator<V, rows, aligned> vectors(g, static_cast<int>(blockIdx.x),
                                           static_cast<int>(blockIdx.y), g.chunks, true);
  A* shared = tutti::cuda::dynamic_shared<A>();
  const int width = g.across * K;
  share_channels<6>(
      shared, first_channel<V, rows>(g, vectors.channel), width, g.channels,
      [&](std::int64_t c, A* values) { put_coefficients(of, from, g.channels, c, values); });
  if (from.report != nullptr && blockIdx.x + blockIdx.y + threadIdx.x == 0)
    put_report(from.report, header_of(from.sums));
  if (vectors.count == 0) return;
  const Affine<A, K> f(shared, width, g.across);
  const GradAffine<A, K> d(shared, width, g.across);
  const bool weighted = weights.data != nullptr;
  for (std::int64_t left = vectors.count; left > 0; left -= U) {
    const int live = left < U ? static_cast<int>(left) : U;
    Pack<T, V> gradients[U], packs[U];
    unsigned passed[U];
    Span spans[U];
    std::int64_t positions[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= live) continue;
      spans[u] = vectors.span();
      positions[u] = vectors.position(spans[u]);
      gradients[u] = load<T, V, aligned>(dy, spans[u]);
      packs[u] = load<T, V, aligned>(x, spans[u]);
      passed[u] = from_mask ? mask[vectors.byte(spans[u])] : 0;
      vectors.next();
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= live) continue;
      const A of_row = rows && weighted ? static_cast<A>(weights[positions[u]]) : A(1);
      A result[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int k = rows ? v : 0;
        const A x_v = packs[u][v];
        const A g_v = masked_gradient<from_mask>(gradients[u][v], x_v, passed[u], v, f.center[k],
                                                 f.scale[k], f.shift[k], rules.relu);
        A w = of_row;
        if (!rows && weighted)
          w = v >= spans[u].first && v < spans[u].last ? static_cast<A>(weights[positions[u] + v])
                                                       : A(0);
        const A of_sums = w == A(0) ? A(0)
                                    : w * (d.b[k] * (x_v - f.center[k]) +
                                           d.c[k]);  // x may be NaN where its weight is 0.
        result[v] = d.a[k] * g_v + of_sums;
      }
      store<T, V, aligned>(dx, spans[u], Pack<T, V>::of(result));
    }
  }
}

__global__ void report_kernel(const double* packet, HeaderReport* report) {
  put_report(report, header_of(packet));
}

}  // namespace

void batch_norm_apply_grad(const InputGradient& arguments) {
  const auto& [dy, saved, sums, moments, position_weights, eps, dx, report] = arguments;
  if ((dy.numel() == 0 || !dx.defined()) && report == nullptr) return;
  const tutti::cuda::DeviceScope scope(dy.device().index());
  if (!dx.defined())
    return tutti::cuda::launch("batch_norm report", report_kernel,
                               tutti::cuda::Grid{.blocks = 1, .threads = 1}, sums.data<double>(),
                               report);
  const Normalization& n = saved.normalization;
  const bool from_mask = n.relu && n.residual.defined();
  with_layout(saved.x, {dy, dx}, [&]<class T, bool rows, bool aligned>() {
    const Geometry g = cut<full_width<T>>(saved.x, rows, batch_of<2, aligned>, rows ? 1 : 2);
    const tutti::cuda::Grid grid{.blocks = blocks_of(g),
                                 .threads = threads_of<rows>,
                                 .shared_bytes = shared_bytes<T, rows>(g, 6)};
    const auto at = [](const Tensor& t) {
      return t.defined() ? static_cast<T*>(t.raw()) : nullptr;
    };
    const auto kernel = from_mask ? apply_grad_kernel<T, rows, aligned, true>
                                  : apply_grad_kernel<T, rows, aligned, false>;
    tutti::cuda::launch("batch_norm apply_grad", kernel, grid, at(dy), at(saved.x), mask_of(n),
                        at(dx), channels_of(n), GradRules{n.relu, saved.weighted},
                        sources_of(arguments), values_of(position_weights, 1), g);
  });
}

}  // namespace tutti::kernels::cuda
