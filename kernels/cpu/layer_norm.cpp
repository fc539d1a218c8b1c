// Layer normalisation on the CPU. A row is read twice or three times while it is in the cache: sum,
// squared deviations, result. Sums run in float32 over at most `run` values and in float64 beyond.
#include "../layer_norm.h"

#include "../../core/parallel.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tutti::kernels::cpu {
namespace {

constexpr std::int64_t run = 1024, rows_in_float = 64;

template <class A>
std::vector<A> values_of(const Tensor& t, std::int64_t n, double absent) {
  std::vector<A> values(static_cast<std::size_t>(n), static_cast<A>(absent));
  if (!t.defined()) return values;
  dispatch(FloatTypes{}, t.dtype(), "layer_norm", [&]<class T>() {
    const T* from = t.data<T>();
    for (std::int64_t i = 0; i < n; ++i)
      values[static_cast<std::size_t>(i)] = static_cast<A>(from[i]);
  });
  return values;
}

std::int64_t grain(std::int64_t width) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(width, 1));
}

// sum of f(i) over [0, n), in runs.
template <class A, class F>
double sum_of(std::int64_t n, const F& f) {
  double total = 0;
  for (std::int64_t first = 0; first < n; first += run) {
    const std::int64_t last = std::min(n, first + run);
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = first; i < last; ++i) sum += f(i);
    total += static_cast<double>(sum);
  }
  return total;
}

template <class T>
void forward_as(std::int64_t rows, std::int64_t width, const T* x, const Tensor& weight,
                const Tensor& bias, double eps, T* y, double* mean, double* rstd) {
  using A = Accumulate<T>;
  const std::vector<A> w = values_of<A>(weight, width, 1), b = values_of<A>(bias, width, 0);
  parallel_for(rows, grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* __restrict in = x + r * width;
      T* __restrict out = y + r * width;
      const A* __restrict scale = w.data(), * __restrict shift = b.data();
      // Around the first value, so that nothing is lost at a large mean; what the mean's rounding
      // lost is put back.
      const A first = A(in[0]), n = static_cast<A>(width);
      const double offset = sum_of<A>(width, [&](std::int64_t i) { return A(in[i]) - first; }) /
                            static_cast<double>(n);
      mean[r] = static_cast<double>(first) + offset;
      const A center = static_cast<A>(mean[r]),
              rest = static_cast<A>(mean[r] - static_cast<double>(center));
      const double squares = sum_of<A>(width, [&](std::int64_t i) {
        const A d = (A(in[i]) - center) - rest;
        return d * d;
      });
      rstd[r] = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
      const A factor = static_cast<A>(rstd[r]);
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i)
        out[i] = T((A(in[i]) - center - rest) * factor * scale[i] + shift[i]);
    }
  });
}

template <class T>
void input_grad_as(std::int64_t rows, std::int64_t width, const T* dy, const T* x,
                   const double* mean, const double* rstd, const Tensor& weight, T* dx) {
  using A = Accumulate<T>;
  const std::vector<A> w = values_of<A>(weight, width, 1);
  parallel_for(rows, grain(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T *in = x + r * width, *g = dy + r * width;
      T* out = dx + r * width;
      const A* scale = w.data();
      const A center = static_cast<A>(mean[r]),
              rest = static_cast<A>(mean[r] - static_cast<double>(center));
      const A factor = static_cast<A>(rstd[r]);
      const double n = static_cast<double>(width);
      const A s1 =
          static_cast<A>(sum_of<A>(width, [&](std::int64_t i) { return A(g[i]) * scale[i]; }) / n);
      const A s2 = static_cast<A>(rstd[r] *
                                  sum_of<A>(width,
                                            [&](std::int64_t i) {
                                              return A(g[i]) * scale[i] *
                                                     (A(in[i]) - center - rest);
                                            }) /
                                  n);
      // dx may be dy: every element is read before it is written, by the same iteration.
#pragma GCC ivdep
      for (std::int64_t i = 0; i < width; ++i)
        out[i] = T(factor * (A(g[i]) * scale[i] - s1 - (A(in[i]) - center - rest) * factor * s2));
    }
  });
}

template <class T>
void parameter_grad_as(std::int64_t rows, std::int64_t width, const T* dy, const T* x,
                       const double* mean, const double* rstd, const Tensor& weight_grad,
                       const Tensor& bias_grad) {
  using A = Accumulate<T>;
  const auto size = static_cast<std::size_t>(width);
  const std::int64_t chunks =
      std::clamp<std::int64_t>(std::min(rows / 16, rows * width / 32768), 1, 32);
  std::vector<double> partial(static_cast<std::size_t>(chunks) * 2 * size);
  parallel_for(
      chunks, std::max<std::int64_t>(1, 32768 * chunks / std::max<std::int64_t>(rows * width, 1)),
      [&](std::int64_t begin, std::int64_t end) {
        std::vector<A> sums(2 * size);
        for (std::int64_t k = begin; k < end; ++k) {
          double* totals = partial.data() + static_cast<std::size_t>(k) * 2 * size;
          const std::int64_t last = rows * (k + 1) / chunks;
          for (std::int64_t r = rows * k / chunks; r < last;) {
            std::fill(sums.begin(), sums.end(), A(0));
            A* __restrict dw = sums.data(), * __restrict db = dw + size;
            for (const std::int64_t stop = std::min(last, r + rows_in_float); r < stop; ++r) {
              const T* __restrict in = x + r * width, * __restrict g = dy + r * width;
              const A center = static_cast<A>(mean[r]),
                      rest = static_cast<A>(mean[r] - static_cast<double>(center));
              const A factor = static_cast<A>(rstd[r]);
              for (std::int64_t i = 0; i < width; ++i) {
                dw[i] += A(g[i]) * ((A(in[i]) - center - rest) * factor);
                db[i] += A(g[i]);
              }
            }
            for (std::size_t i = 0; i < 2 * size; ++i) totals[i] += static_cast<double>(sums[i]);
          }
        }
      });
  for (std::int64_t k = 1; k < chunks; ++k)
    for (std::size_t i = 0; i < 2 * size; ++i)
      partial[i] += partial[static_cast<std::size_t>(k) * 2 * size + i];
  const auto write = [&](const Tensor& to, std::size_t from) {
    if (!to.defined()) return;
    dispatch(FloatTypes{}, to.dtype(), "layer_norm", [&]<class P>() {
      for (std::size_t i = 0; i < size; ++i) to.data<P>()[i] = static_cast<P>(partial[from + i]);
    });
  };
  write(weight_grad, 0);
  write(bias_grad, size);
}

std::int64_t width_of(const Tensor& x, const Tensor& mean) {
  return mean.numel() == 0 ? 0 : x.numel() / mean.numel();
}

void forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& y,
             const Tensor& mean, const Tensor& rstd) {
  const std::int64_t width = width_of(x, mean);
  if (width == 0) return;
  dispatch(RealTypes{}, x.dtype(), "layer_norm", [&]<class T>() {
    forward_as(mean.numel(), width, x.data<T>(), weight, bias, eps, y.data<T>(),
               mean.data<double>(), rstd.data<double>());
  });
}

void input_grad(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                const Tensor& weight, const Tensor& dx) {
  const std::int64_t width = width_of(x, mean);
  if (width == 0) return;
  dispatch(RealTypes{}, x.dtype(), "layer_norm", [&]<class T>() {
    input_grad_as(mean.numel(), width, dy.data<T>(), x.data<T>(), mean.data<double>(),
                  rstd.data<double>(), weight, dx.data<T>());
  });
}

void parameter_grad(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                    const Tensor& weight_grad, const Tensor& bias_grad) {
  const Tensor& any = weight_grad.defined() ? weight_grad : bias_grad;
  dispatch(RealTypes{}, x.dtype(), "layer_norm", [&]<class T>() {
    parameter_grad_as(mean.numel(), any.numel(), dy.data<T>(), x.data<T>(), mean.data<double>(),
                      rstd.data<double>(), weight_grad, bias_grad);
  });
}

}  // namespace

const LayerNorm& layer_norm() {
  static constexpr LayerNorm table{forward, input_grad, parameter_grad};
  return table;
}

}  // namespace tutti::kernels::cpu
