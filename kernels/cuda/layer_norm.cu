// This file implements layer normalisation on CUDA devices. A warp processes each row of up to
// `short_row` values, and a block each longer row. A row is read two or three times, all but the
// first time from the cache. Sums run in float32 over the elements that a thread loads at once, and
// in float64 beyond.
#include "../kernels.h"

#include "../layer_norm_functions.h"
#include "batch_norm_gradient.h"
#include "workspace.h"

namespace tutti::kernels::cuda {
namespace {

constexpr int threads = 256, warps = threads / 32, short_row = 2048;

// Returns the sum of v over the threads of a row: over the block if `by_block`, else over the warp.
__device__ double sum_over_row(double v, bool by_block, double* scratch) {
  for (int bits = 16; bits > 0; bits /= 2) v += __shfl_xor_sync(0xffffffffu, v, bits);
  if (!by_block) return v;
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  double total = 0;
  for (int w = 0; w < warps; ++w) total += scratch[w];
  return total;
}

// Calls body(i) for the calling thread's part of a row: elements i, ... i + V - 1.
template <int V, class Body>
__device__ void for_row(std::int64_t width, bool by_block, const Body& body) {
  const int lane = by_block ? static_cast<int>(threadIdx.x) : static_cast<int>(threadIdx.x) % 32;
  const std::int64_t step = (by_block ? threads : 32) * V;
#pragma unroll 4
  for (std::int64_t i = lane * V; i < width; i += step) body(i);
}

__device__ std::int64_t first_row(bool by_block) {
  return by_block ? blockIdx.x : static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
}
__device__ std::int64_t row_step(bool by_block) {
  return by_block ? gridDim.x : static_cast<std::int64_t>(gridDim.x) * warps;
}

// The shape of x (and dy) as rows of `width` elements.
struct RowShape {
  std::int64_t rows, width;
  bool by_block;  // True if a block processes each row, else a warp.
};

// The statistics of each row, which the forward writes and the backward reads.
struct RowMoments {
  double *mean, *rstd;

  explicit RowMoments(const Tensor& means, const Tensor& rstds)
      : mean(means.data<double>()), rstd(rstds.data<double>()) {}
};

// The weight and bias of each column.
struct Parameters {
  Values weight, bias;
};

template <class T, int V>
__global__ __launch_bounds__(threads) void forward_kernel(RowShape shape, const T* x,
                                                          Parameters parameters, double eps, T* y,
                                                          RowMoments moments) {
  using A = Accumulate<T>;
  __shared__ double scratch[warps];
  const std::int64_t width = shape.width;
  const bool by_block = shape.by_block;
  for (std::int64_t r = first_row(by_block); r < shape.rows; r += row_step(by_block)) {
    const T* in = x + r * width;
    // Differences from the first value give a rough mean, so that nothing is lost at a large mean.
    // Beside an outlier their rounding is coarse; deviations from the rough mean correct it.
    const A first = convert<A>(in[0]);
    const double n = static_cast<double>(width);
    double sum = 0;
    for_row<V>(width, by_block, [&](std::int64_t i) {
      const Pack<T, V> pack = load<T, V>(in, Span{i, 0, V});
      A s = 0;
#pragma unroll
      for (int v = 0; v < V; ++v) s += pack[v] - first;
      sum += static_cast<double>(s);
    });
    const double rough = static_cast<double>(first) + sum_over_row(sum, by_block, scratch) / n;
    const SplitMean<A> split(rough);
    A deviations = 0;  // They are small, and so is the error of their sum.
    double squares = 0;
    for_row<V>(width, by_block, [&](std::int64_t i) {
      const Pack<T, V> pack = load<T, V>(in, Span{i, 0, V});
      A s = 0;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const A d = split.deviation(pack[v]);
        deviations += d, s += d * d;
      }
      squares += static_cast<double>(s);
    });
    const double rest = sum_over_row(deviations, by_block, scratch) / n, mean = rough + rest,
                 variance = sum_over_row(squares, by_block, scratch) / n - rest * rest,
                 rstd = 1 / sqrt((variance < 0 ? 0 : variance) + eps);
    const RowStatistics<A> row(mean, rstd);
    for_row<V>(width, by_block, [&](std::int64_t i) {
      const Pack<T, V> pack = load<T, V>(in, Span{i, 0, V});
      A result[V];
#pragma unroll
      for (int v = 0; v < V; ++v)
        result[v] =
            row.output(pack[v], parameters.weight.get<A>(i + v), parameters.bias.get<A>(i + v));
      store<T, V>(y + r * width, Span{i, 0, V}, Pack<T, V>::of(result));
    });
    if (threadIdx.x % (by_block ? threads : 32) == 0)
      moments.mean[r] = mean, moments.rstd[r] = rstd;
  }
}

template <class T, int V>
__global__ __launch_bounds__(threads) void input_grad_kernel(RowShape shape, const T* dy,
                                                             const T* x, RowMoments moments,
                                                             Values weight, T* dx) {
  using A = Accumulate<T>;
  __shared__ double scratch[warps];
  const std::int64_t width = shape.width;
  const bool by_block = shape.by_block;
  for (std::int64_t r = first_row(by_block); r < shape.rows; r += row_step(by_block)) {
    const T *in = x + r * width, *g = dy + r * width;
    const RowStatistics<A> row(moments.mean[r], moments.rstd[r]);
    double sum = 0, sum_of_products = 0;
    for_row<V>(width, by_block, [&](std::int64_t i) {
      const Pack<T, V> pack = load<T, V>(in, Span{i, 0, V}),
                       gradient = load<T, V>(g, Span{i, 0, V});
      A a = 0, b = 0;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const A scaled = gradient[v] * weight.get<A>(i + v);
        a += scaled;
        b += scaled * row.mean.deviation(pack[v]);
      }
      sum += static_cast<double>(a);
      sum_of_products += static_cast<double>(b);
    });
    const double n = static_cast<double>(width);
    const A mean_of_g = static_cast<A>(sum_over_row(sum, by_block, scratch) / n);
    const A mean_of_gz =
        static_cast<A>(moments.rstd[r] * sum_over_row(sum_of_products, by_block, scratch) / n);
    // dx may be dy, because each thread reads an element before it writes it.
    for_row<V>(width, by_block, [&](std::int64_t i) {
      const Pack<T, V> pack = load<T, V>(in, Span{i, 0, V}),
                       gradient = load<T, V>(g, Span{i, 0, V});
      A result[V];
#pragma unroll
      for (int v = 0; v < V; ++v)
        result[v] =
            row.input_grad(pack[v], gradient[v] * weight.get<A>(i + v), mean_of_g, mean_of_gz);
      store<T, V>(dx + r * width, Span{i, 0, V}, Pack<T, V>::of(result));
    });
  }
}

// The gradients of weight and bias, either of which may be unwanted.
struct ParameterGradients {
  Target weight, bias;

  __device__ void put(std::int64_t column, double of_bias, double of_weight) const {
    weight.put(column, of_weight);
    bias.put(column, of_bias);
  }
};

// Sums the gradients of weight and bias over the rows. Columns correspond to the channels of batch
// norm, so the kernel uses batch norm's row iterators and its reductions over blocks.
template <class T, int V>
__global__ __launch_bounds__(row_threads,
                             1) void parameter_grad_kernel(const T* dy, const T* x,
                                                           RowMoments moments, Geometry g,
                                                           Partials partials,
                                                           ParameterGradients gradients) {
  using A = Accumulate<T>;
  constexpr int U = 2;
  double* scratch = tutti::cuda::dynamic_shared<double>();
  const int tile = static_cast<int>(blockIdx.x), chunk = static_cast<int>(blockIdx.y);
  RowIterator<V> rows(g, tile, chunk, g.chunks, false);
  GradSums<A, V, true> sums;
  for (std::int64_t left = rows.count; left > 0; left -= U) {
    const int live = left < U ? static_cast<int>(left) : U;
    Pack<T, V> gradient_packs[U], packs[U];
    double means[U], rstds[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= live) continue;
      gradient_packs[u] = load<T, V>(dy, rows.span());
      packs[u] = load<T, V>(x, rows.span());
      means[u] = moments.mean[rows.row], rstds[u] = moments.rstd[rows.row];
      rows.next();
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= live) continue;
      const RowStatistics<A> row(means[u], rstds[u]);
#pragma unroll
      for (int v = 0; v < V; ++v)
        sums.add(v, gradient_packs[u][v], row.normalized(packs[u][v]), false);
      sums.end_vector();
    }
  }
  sums.fold();
  const int x_thread = static_cast<int>(threadIdx.x) % g.across,
            y_thread = static_cast<int>(threadIdx.x) / g.across;
  sum_down(sums.totals, x_thread, y_thread, g.across, g.down, scratch);
  const std::int64_t first = (static_cast<std::int64_t>(tile) * g.across + x_thread) * V;
  const auto put = [&](std::int64_t c, double of_bias, double of_weight) {
    gradients.put(c, of_bias, of_weight);
  };
  if (y_thread == 0 && first < g.channels)
    for (int v = 0; v < V; ++v) {
      if (g.chunks == 1) put(first + v, sums.totals[v], sums.totals[V + v]);
      else partials.values[chunk * g.channels + first + v] = {sums.totals[v], sums.totals[V + v]};
    }
  if (g.chunks == 1 ||
      !is_last(partials.counters + 1 + tile, g.chunks, reinterpret_cast<int*>(scratch)))
    return;
  sum_chunks(partials.values, g.chunks, g.channels, static_cast<std::int64_t>(tile) * g.across * V,
             g.across * V, scratch, put);
}

// ---- Host side.

// Calls body.operator()<T, V>(shape, grid).
template <class Body>
void dispatch_rows(const Tensor& x, std::int64_t rows, std::int64_t width, bool aligned,
                   const Body& body) {
  const RowShape shape{rows, width, width > short_row};
  const std::int64_t blocks = shape.by_block ? rows : (rows + warps - 1) / warps;
  const tutti::cuda::Grid grid{
      .blocks = static_cast<unsigned>(std::min<std::int64_t>(blocks, 1 << 20)), .threads = threads};
  dispatch(TrainTypes{}, x.dtype(), "layer_norm", [&]<class H>() {
    using T = DeviceType<H>;
    constexpr int V = full_width<T>;
    aligned&& width % V == 0 ? body.template operator()<T, V>(shape, grid)
                             : body.template operator()<T, 1>(shape, grid);
  });
}

template <class T>
T* data_of(const Tensor& t) {
  return static_cast<T*>(t.raw());
}

std::int64_t width_of(const Tensor& x, const Tensor& mean) {
  return mean.numel() == 0 ? 0 : x.numel() / mean.numel();
}

void forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& y,
             const Tensor& mean, const Tensor& rstd) {
  const std::int64_t rows = mean.numel(), width = width_of(x, mean);
  if (width == 0) return;
  const tutti::cuda::DeviceScope scope(x.device().index());
  const Parameters parameters{values_of(weight, 1), values_of(bias, 0)};
  dispatch_rows(x, rows, width, is_aligned(x) && is_aligned(y),
                [&]<class T, int V>(const RowShape& shape, const tutti::cuda::Grid& grid) {
                  tutti::cuda::launch("layer_norm forward", forward_kernel<T, V>, grid, shape,
                                      data_of<T>(x), parameters, eps, data_of<T>(y),
                                      RowMoments(mean, rstd));
                });
}

void input_grad(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                const Tensor& weight, const Tensor& dx) {
  const std::int64_t rows = mean.numel(), width = width_of(x, mean);
  if (width == 0) return;
  const tutti::cuda::DeviceScope scope(x.device().index());
  const bool aligned = is_aligned(x) && is_aligned(dy) && is_aligned(dx);
  dispatch_rows(x, rows, width, aligned,
                [&]<class T, int V>(const RowShape& shape, const tutti::cuda::Grid& grid) {
                  tutti::cuda::launch("layer_norm input_grad", input_grad_kernel<T, V>, grid, shape,
                                      data_of<T>(dy), data_of<T>(x), RowMoments(mean, rstd),
                                      values_of(weight, 1), data_of<T>(dx));
                });
}

void parameter_grad(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                    const Tensor& weight_grad, const Tensor& bias_grad) {
  const Tensor& any = weight_grad.defined() ? weight_grad : bias_grad;
  if (!any.defined() || any.numel() == 0) return;
  const tutti::cuda::DeviceScope scope(x.device().index());
  const std::int64_t rows = mean.numel(), width = any.numel();
  const ParameterGradients gradients{target_of(weight_grad), target_of(bias_grad)};
  dispatch_rows(x, rows, width, is_aligned(x) && is_aligned(dy),
                [&]<class T, int V>(const RowShape&, const tutti::cuda::Grid&) {
                  const Geometry g = cut_rows<V>(x.device(), rows, width, 2, 1);
                  const Workspace workspace(x.device(), g.chunks > 1 ? g.chunks * width : 0, 0);
                  const std::size_t scratch =
                      static_cast<std::size_t>(2 * V * g.across * ((g.down + 1) / 2) + 2);
                  const tutti::cuda::Grid grid{.blocks = blocks_of(g),
                                               .threads = row_threads,
                                               .shared_bytes = sizeof(double) * scratch};
                  tutti::cuda::launch("layer_norm parameter_grad", parameter_grad_kernel<T, V>,
                                      grid, data_of<T>(dy), data_of<T>(x), RowMoments(mean, rstd),
                                      g, workspace.partials(), gradients);
                });
}

}  // namespace

extern const LayerNorm layer_norm{
    .forward = forward, .input_grad = input_grad, .parameter_grad = parameter_grad};

}  // namespace tutti::kernels::cuda
