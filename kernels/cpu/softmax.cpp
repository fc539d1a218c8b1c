// Softmax and cross-entropy on the CPU: one line of classes at a time, sums in float64.
#include "../softmax.h"

#include "lines.h"
#include "operand.h"
#include "vector_math.h"

#include <cmath>

namespace tutti::kernels::cpu {
namespace {

// A line of classes, visited in dense pieces of the compute type. `body(values, first, count)`.
template <class C, class T, class Body>
void in_pieces(const T* x, std::int64_t n, std::int64_t step, const Body& body) {
  Buffer<C> buffer;
  for (std::int64_t first = 0; first < n; first += Block::max_count) {
    const std::int64_t count = std::min(Block::max_count, n - first);
    if constexpr (std::is_same_v<C, T>) {
      if (step == 1) {
        body(x + first, first, count);
        continue;
      }
    }
    for (std::int64_t i = 0; i < count; ++i)
      buffer[static_cast<std::size_t>(i)] = convert<C>(x[(first + i) * step]);
    body(std::as_const(buffer).data(), first, count);
  }
}

// Loops over dense pieces are functions of their own: inside of closures they do not vectorise.
template <class C>
C largest_in(const C* values, std::int64_t count, C largest) {
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
  return largest;
}

template <class C>
double sum_exp(const C* values, std::int64_t count, C shift) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i)
    sum += static_cast<double>(vector_exp(values[i] - shift));
  return sum;
}

// out = factor * (exp(x - a - b) - even)
template <class C>
void scaled_exp(const C* values, std::int64_t count, C a, C b, C factor, C even, C* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = factor * (vector_exp(values[i] - a - b) - even);
}

// The largest of a line; NaN may be missed here, it comes out of the exponentials. 0 for a line of
// -inf only, so that its logarithms are -inf.
template <class C, class T>
C largest_of(const T* x, std::int64_t n, std::int64_t step) {
  C largest = -std::numeric_limits<C>::infinity();
  in_pieces<C>(x, n, step, [&](const C* values, std::int64_t, std::int64_t count) {
    largest = largest_in(values, count, largest);
  });
  return largest == -std::numeric_limits<C>::infinity() ? C(0) : largest;
}

// log sum exp(x - largest)
template <class C, class T>
double log_sum_of(const T* x, std::int64_t n, std::int64_t step, C largest) {
  double total = 0;
  in_pieces<C>(x, n, step, [&](const C* values, std::int64_t, std::int64_t count) {
    total += sum_exp(values, count, largest);
  });
  return std::log(total);
}

template <class T, class C>
void store(const C* values, T* to, std::int64_t step, std::int64_t count) {
  if (step == 1)
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<T>(values[i]);
  else
    for (std::int64_t i = 0; i < count; ++i) to[i * step] = convert<T>(values[i]);
}

void forward(const Tensor& in, int dim, bool log, const Tensor& out) {
  if (in.numel() == 0) return;
  dispatch(RealTypes{}, in.dtype(), "softmax", [&]<class T>() {
    using C = Compute<T>;
    const T* from = in.data<T>();
    T* to = out.data<T>();
    const std::int64_t n = in.shape()[dim], in_step = in.strides()[dim],
                       out_step = out.strides()[dim];
    const Lines<2> lines(without(in.shape(), dim),
                         {without(in.strides(), dim), without(out.strides(), dim)});
    lines.run(n, [=](const auto& at) {
      const T* x = from + at[0];
      T* y = to + at[1];
      const C largest = largest_of<C>(x, n, in_step);
      const C shift = static_cast<C>(log_sum_of<C>(x, n, in_step, largest));
      in_pieces<C>(x, n, in_step, [&](const C* values, std::int64_t first, std::int64_t count) {
        Buffer<C> result;
        if (log)
          for (std::int64_t i = 0; i < count; ++i)
            result[static_cast<std::size_t>(i)] = values[i] - largest - shift;
        else scaled_exp(values, count, largest, shift, C(1), C(0), result.data());
        store(result.data(), y + first * out_step, out_step, count);
      });
    });
  });
}

void backward(const Tensor& g, const Tensor& y, int dim, bool log, const Tensor& out) {
  if (y.numel() == 0) return;
  dispatch(RealTypes{}, y.dtype(), "softmax", [&]<class T>() {
    using C = Compute<T>;
    const T* gradient = g.data<T>();
    const T* output = y.data<T>();
    T* to = out.data<T>();
    const std::int64_t n = y.shape()[dim], g_step = g.strides()[dim], y_step = y.strides()[dim],
                       out_step = out.strides()[dim];
    const Lines<3> lines(
        without(y.shape(), dim),
        {without(g.strides(), dim), without(y.strides(), dim), without(out.strides(), dim)});
    lines.run(n, [=](const auto& at) {
      const T* dy = gradient + at[0];
      const T* v = output + at[1];
      T* dx = to + at[2];
      double total = 0;
#pragma omp simd reduction(+ : total)
      for (std::int64_t i = 0; i < n; ++i) {
        const double term = static_cast<double>(convert<C>(dy[i * g_step]));
        total += log ? term : term * static_cast<double>(convert<C>(v[i * y_step]));
      }
      const C t = static_cast<C>(total);
      if (log)
        for (std::int64_t i = 0; i < n; ++i)
          dx[i * out_step] =
              convert<T>(convert<C>(dy[i * g_step]) - vector_exp(convert<C>(v[i * y_step])) * t);
      else
        for (std::int64_t i = 0; i < n; ++i)
          dx[i * out_step] =
              convert<T>(convert<C>(v[i * y_step]) * (convert<C>(dy[i * g_step]) - t));
    });
  });
}

// Throws before any thread starts: a parallel body must not.
void check_targets(const Tensor& targets, std::int64_t classes, const CrossEntropyRule& rule) {
  const std::int64_t* data = targets.data<std::int64_t>();
  const Lines<1> all(targets.shape(), {targets.strides()});
  all.run_range(0, targets.numel(), [&](const auto& at) {
    const std::int64_t target = data[at[0]];
    if (target != rule.ignore_index && (target < 0 || target >= classes))
      fail<ValueError>("cross_entropy: expected targets from 0 to {} (or ignore_index {}), got {}",
                       classes - 1, rule.ignore_index, target);
  });
}

void cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyRule& rule,
                   const Tensor& losses, const Tensor& normalizers) {
  check_targets(targets, logits.shape()[1], rule);
  dispatch(RealTypes{}, logits.dtype(), "cross_entropy", [&]<class T>() {
    using C = Compute<T>;
    const T* from = logits.data<T>();
    const std::int64_t* target = targets.data<std::int64_t>();
    C* loss = losses.data<C>();
    C* normalizer = normalizers.data<C>();
    const std::int64_t n = logits.shape()[1], step = logits.strides()[1];
    const Lines<4> lines(targets.shape(), {without(logits.strides(), 1), targets.strides(),
                                           losses.strides(), normalizers.strides()});
    lines.run(n, [=](const auto& at) {
      const T* x = from + at[0];
      const std::int64_t t = target[at[1]];
      const C largest = largest_of<C>(x, n, step);
      const double log_sum = log_sum_of<C>(x, n, step, largest);
      normalizer[at[3]] = static_cast<C>(log_sum);
      double value = 0;
      if (t != rule.ignore_index) {
        // Relative to the largest logit: log sum exp(x) itself would cancel where logits are large.
        const auto nll = [&](std::int64_t i) {
          return static_cast<double>(largest) - static_cast<double>(convert<C>(x[i * step])) +
                 log_sum;
        };
        value = (1 - rule.label_smoothing) * nll(t);
        if (rule.label_smoothing != 0) {
          double all = 0;
          for (std::int64_t i = 0; i < n; ++i) all += nll(i);
          value += rule.label_smoothing / static_cast<double>(n) * all;
        }
      }
      loss[at[2]] = static_cast<C>(value);
    });
  });
}

void cross_entropy_grad(const Tensor& g, const Tensor& logits, const Tensor& targets,
                        const CrossEntropyRule& rule, const Tensor& normalizers,
                        const Tensor& out) {
  dispatch(RealTypes{}, logits.dtype(), "cross_entropy", [&]<class T>() {
    using C = Compute<T>;
    const T* from = logits.data<T>();
    const std::int64_t* target = targets.data<std::int64_t>();
    const C* scale = g.data<C>();
    const C* normalizer = normalizers.data<C>();
    T* to = out.data<T>();
    const std::int64_t n = logits.shape()[1], step = logits.strides()[1],
                       out_step = out.strides()[1];
    const C even = static_cast<C>(rule.label_smoothing / static_cast<double>(n));
    const C hit = static_cast<C>(1 - rule.label_smoothing);
    const Lines<5> lines(targets.shape(),
                         {without(logits.strides(), 1), targets.strides(), g.strides(),
                          normalizers.strides(), without(out.strides(), 1)});
    lines.run(n, [=](const auto& at) {
      const T* x = from + at[0];
      const std::int64_t t = target[at[1]];
      const C factor = scale[at[2]];
      T* dx = to + at[4];
      if (t == rule.ignore_index) {
        for (std::int64_t i = 0; i < n; ++i)
          dx[i * out_step] = convert<T>(C(0));  // whatever the logits are
        return;
      }
      const C largest = largest_of<C>(x, n, step), shift = normalizer[at[3]];
      in_pieces<C>(x, n, step, [&](const C* values, std::int64_t first, std::int64_t count) {
        Buffer<C> result;
        scaled_exp(values, count, largest, shift, factor, even, result.data());
        if (t >= first && t < first + count) {
          const C probability = vector_exp(values[t - first] - largest - shift);
          result[static_cast<std::size_t>(t - first)] = factor * (probability - even - hit);
        }
        store(result.data(), dx + first * out_step, out_step, count);
      });
    });
  });
}

}  // namespace

const Softmax& softmax() {
  static constexpr Softmax table{forward, backward, cross_entropy, cross_entropy_grad};
  return table;
}

}  // namespace tutti::kernels::cpu
