// Layer normalisation on the CPU. A row is read two or three times while it is in the cache: for
// its rough mean, its deviations from that, and the result. Sums of 16-bit and float32 elements run
// in float32 over at most `values_in_float` values (or `rows_in_float` rows), in float64 beyond.
#include "../kernels.h"

#include "../../core/parallel.h"
#include "../layer_norm_functions.h"
#include "batch_norm_layout.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

constexpr std::int64_t values_in_float = 1024, rows_in_float = 64;

// Calls body(row) for every row, from several threads.
template <class Body>
void for_each_row(std::int64_t rows, std::int64_t width, const Body& body) {
  parallel_for(rows, 16384 / std::max<std::int64_t>(width, 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t r = begin; r < end; ++r) body(r);
               });
}

// Returns the sums over [0, n) of both values of f(i), a std::pair<A, A>.
template <class A, class F>
std::pair<double, double> sums_of(std::int64_t n, const F& f) {
  double first_total = 0, second_total = 0;
  for (std::int64_t begin = 0; begin < n; begin += values_in_float) {
    const std::int64_t end = std::min(n, begin + values_in_float);
    A first = 0, second = 0;
#pragma omp simd reduction(+ : first, second)
    for (std::int64_t i = begin; i < end; ++i) {
      const std::pair<A, A> values = f(i);
      first += values.first, second += values.second;
    }
    first_total += static_cast<double>(first), second_total += static_cast<double>(second);
  }
  return {first_total, second_total};
}

// Returns the mean and the variance of `width` values. Differences from the first value give a
// rough mean; beside an outlier their sum is so large that its rounding shows in the others'
// results. Deviations from the rough mean are small, and their mean corrects both.
template <class A, class T>
std::pair<double, double> moments_of(const T* __restrict in, std::int64_t width) {
  const A first = A(in[0]);
  const auto n = static_cast<double>(width);
  const double sum =
      sums_of<A>(width, [&](std::int64_t i) { return std::pair(A(in[i]) - first, A(0)); }).first;
  const double rough = static_cast<double>(first) + sum / n;
  const SplitMean<A> split(rough);
  const auto [deviations, squares] = sums_of<A>(width, [&](std::int64_t i) {
    const A d = split.deviation(A(in[i]));
    return std::pair(d, d * d);
  });
  const double rest = deviations / n;
  return {rough + rest, std::max(squares / n - rest * rest, 0.0)};
}

std::int64_t width_of(const Tensor& x, const Tensor& mean) {
  return mean.numel() == 0 ? 0 : x.numel() / mean.numel();
}

void forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& y,
             const Tensor& mean, const Tensor& rstd) {
  const std::int64_t width = width_of(x, mean);
  if (width == 0) return;
  dispatch(RealTypes{}, x.dtype(), "layer_norm", [&]<class T>() {
    using A = Accumulate<T>;
    const std::vector<A> w = channel_values<A>(weight, width, 1),
                         b = channel_values<A>(bias, width, 0);
    const T* x_data = x.data<T>();
    T* y_data = y.data<T>();
    double *means = mean.data<double>(), *rstds = rstd.data<double>();
    for_each_row(mean.numel(), width, [&](std::int64_t r) {
      const T* __restrict in = x_data + r * width;
      T* __restrict out = y_data + r * width;
      const A* __restrict scale = w.data(), * __restrict shift = b.data();
      const auto [row_mean, variance] = moments_of<A>(in, width);
      const double row_rstd = 1 / std::sqrt(variance + eps);
      const RowStatistics<A> row(row_mean, row_rstd);
      TUTTI_INDEPENDENT_LOOP
      for (std::int64_t i = 0; i < width; ++i) out[i] = T(row.output(A(in[i]), scale[i], shift[i]));
      means[r] = row_mean;
      rstds[r] = row_rstd;
    });
  });
}

void input_grad(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                const Tensor& weight, const Tensor& dx) {
  const std::int64_t width = width_of(x, mean);
  if (width == 0) return;
  dispatch(RealTypes{}, x.dtype(), "layer_norm", [&]<class T>() {
    using A = Accumulate<T>;
    const std::vector<A> w = channel_values<A>(weight, width, 1);
    const T *x_data = x.data<T>(), *dy_data = dy.data<T>();
    T* dx_data = dx.data<T>();
    const double *means = mean.data<double>(), *rstds = rstd.data<double>();
    for_each_row(mean.numel(), width, [&](std::int64_t r) {
      const T *in = x_data + r * width, *g = dy_data + r * width;
      T* out = dx_data + r * width;
      const A* scale = w.data();
      const double n = static_cast<double>(width), row_rstd = rstds[r];
      const RowStatistics<A> row(means[r], row_rstd);
      const auto [sum, sum_of_products] = sums_of<A>(width, [&](std::int64_t i) {
        const A scaled = A(g[i]) * scale[i];
        return std::pair(scaled, scaled * row.mean.deviation(A(in[i])));
      });
      const A mean_of_g = static_cast<A>(sum / n);
      const A mean_of_gz = static_cast<A>(row_rstd * sum_of_products / n);
      // dx may be dy: every element is read before it is written, by the same iteration.
      TUTTI_INDEPENDENT_LOOP
      for (std::int64_t i = 0; i < width; ++i)
        out[i] = T(row.input_grad(A(in[i]), A(g[i]) * scale[i], mean_of_g, mean_of_gz));
    });
  });
}

// Computes the sums of dy z over all rows, followed by those of dy, `width` of each. Chunks of rows
// are summed separately and added in order; their number depends only on the shape.
template <class T>
std::vector<double> parameter_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                   const Tensor& rstd, std::int64_t width) {
  using A = Accumulate<T>;
  const auto size = static_cast<std::size_t>(width);
  const std::int64_t rows = mean.numel();
  const T *x_data = x.data<T>(), *dy_data = dy.data<T>();
  const double *means = mean.data<double>(), *rstds = rstd.data<double>();
  const std::int64_t chunks =
      std::clamp<std::int64_t>(std::min(rows / 16, rows * width / 32768), 1, 32);
  const std::int64_t grain = 32768 * chunks / std::max<std::int64_t>(rows * width, 1);
  std::vector<double> partial(static_cast<std::size_t>(chunks) * 2 * size);
  parallel_for(chunks, grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<A> sums(2 * size);
    for (std::int64_t k = begin; k < end; ++k) {
      double* totals = partial.data() + static_cast<std::size_t>(k) * 2 * size;
      const std::int64_t last = rows * (k + 1) / chunks;
      for (std::int64_t r = rows * k / chunks; r < last;) {
        std::fill(sums.begin(), sums.end(), A(0));
        A* __restrict dw = sums.data(), * __restrict db = dw + size;
        for (const std::int64_t stop = std::min(last, r + rows_in_float); r < stop; ++r) {
          const T* __restrict in = x_data + r * width, * __restrict g = dy_data + r * width;
          const RowStatistics<A> row(means[r], rstds[r]);
          for (std::int64_t i = 0; i < width; ++i) {
            dw[i] += A(g[i]) * row.normalized(A(in[i]));
            db[i] += A(g[i]);
          }
        }
        for (std::size_t i = 0; i < 2 * size; ++i) totals[i] += static_cast<double>(sums[i]);
      }
    }
  });
  for (std::size_t k = 1; k < static_cast<std::size_t>(chunks); ++k)
    for (std::size_t i = 0; i < 2 * size; ++i) partial[i] += partial[k * 2 * size + i];
  partial.resize(2 * size);
  return partial;
}

void parameter_grad(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                    const Tensor& weight_grad, const Tensor& bias_grad) {
  const std::int64_t width = (weight_grad.defined() ? weight_grad : bias_grad).numel();
  dispatch(RealTypes{}, x.dtype(), "layer_norm", [&]<class T>() {
    const std::vector<double> sums = parameter_sums<T>(dy, x, mean, rstd, width);
    const double *dw = sums.data(), *db = dw + width;
    write_channels(weight_grad, [=](std::int64_t i) { return dw[i]; });
    write_channels(bias_grad, [=](std::int64_t i) { return db[i]; });
  });
}

}  // namespace

extern const LayerNorm layer_norm{
    .forward = forward, .input_grad = input_grad, .parameter_grad = parameter_grad};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
