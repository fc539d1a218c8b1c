// This file computes y = max(0, (x - center) scale + shift + residual) in one pass; residual and
// ReLU are optional. The pass runs from the end of the tensor to its beginning, because the
// preceding pass has left the end in the L2 cache. If there is a residual and a ReLU, the pass also
// writes the mask of the ReLU.
#include "batch_norm_channels.h"
#include "batch_norm_geometry.h"
#include "batch_norm_passes.h"

namespace tutti::kernels::cuda {
namespace {

template <class T, bool rows, bool aligned, bool add>
__global__ __launch_bounds__(threads_of<rows>,
                             rows ? 2 : 4) void apply_kernel(const T* x, const T* residual, T* y,
                                                             std::uint8_t* mask, Channels of,
                                                             bool relu, Geometry g) {
  using A = Accumulate<T>;
  constexpr int V = full_width<T>, U = batch_of<(add ? 3 : 2), aligned>, K = rows ? V : 1;
  VectorIterator<V, rows, aligned> vectors(g, static_cast<int>(blockIdx.x),
                                           static_cast<int>(blockIdx.y), g.chunks, true);
  A* shared = tutti::cuda::dynamic_shared<A>();
  const int width = g.across * K;
  share_channels<3>(shared, first_channel<V, rows>(g, vectors.channel), width, g.channels,
                    [&](std::int64_t c, A* values) {
                      put_output_coefficients(of.mean[c], of.rstd[c], of.weight[c], of.bias[c],
                                              values);
                    });
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

}  // namespace

void batch_norm_apply(const Tensor& x, const Normalization& to, const Tensor& y) {
  if (x.numel() == 0) return;
  const tutti::cuda::DeviceScope scope(x.device().index());
  with_layout(x, {y, to.residual}, [&]<class T, bool rows, bool aligned>() {
    const int batch = to.residual.defined() ? batch_of<3, aligned> : batch_of<2, aligned>;
    const Geometry g = cut<full_width<T>>(x, rows, batch, rows ? 2 : 4);
    const tutti::cuda::Grid grid{.blocks = blocks_of(g),
                                 .threads = threads_of<rows>,
                                 .shared_bytes = shared_bytes<T, rows>(g, 3)};
    const T *from = static_cast<const T*>(x.raw()),
            *add = to.residual.defined() ? static_cast<const T*>(to.residual.raw()) : nullptr;
    T* out = static_cast<T*>(y.raw());
    const auto kernel = add ? apply_kernel<T, rows, aligned, true>
                            : apply_kernel<T, rows, aligned, false>;
    tutti::cuda::launch("batch_norm apply", kernel, grid, from, add, out, mask_of(to),
                        channels_of(to), to.relu, g);
  });
}

}  // namespace tutti::kernels::cuda
