// This file computes the gradient of the input of batch norm on the CPU, in one pass over dy and x:
// dx = of_g g + w (of_x (x - center) + constant), where w is the weight of the position. The
// coefficients are computed in kernels/batch_norm_math.h. dx may be the same tensor as dy, because
// each step reads its elements before it writes them.
#include "batch_norm_gradient.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

// The GradientCoefficients of every channel, repeated for each of the `rows` rows of a group.
template <class A>
struct GradientCoefficientArrays {
  std::vector<A> of_g, of_x, constant;

  GradientCoefficientArrays(const InputGradient& arguments, std::int64_t channels,
                            std::int64_t rows) {
    const Normalization& normalization = arguments.saved.normalization;
    const double *mean = normalization.mean.data<double>(),
                 *rstd = normalization.rstd.data<double>();
    const auto weight = channel_values(normalization.weight, channels, 1);
    for (auto* values : {&of_g, &of_x, &constant})
      values->resize(static_cast<std::size_t>(channels * rows));
    const double* moments = arguments.sums.defined() ? arguments.moments.data<double>() : nullptr;
    const double n = moments ? moments[0] : 0;
    if (n > 0) {
      const double *s1 = arguments.sums.data<double>() + packet_header_size, *s2 = s1 + channels,
                   *m2 = moments + packet_header_size + channels;
      const double per_n = 1 / n, floor = gradient_floor(arguments.eps);
      for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c)
        put(c, gradient_coefficients<A>(mean[c], rstd[c], weight[c], per_n, {s1[c], s2[c]}, m2[c],
                                        floor));
    } else {
      for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c)
        put(c, gradient_coefficients<A>(rstd[c], weight[c]));
    }
    for (auto* values : {&of_g, &of_x, &constant}) repeat(*values, channels);
  }

 private:
  void put(std::size_t c, const GradientCoefficients<A>& coefficients) {
    of_g[c] = coefficients.of_g;
    of_x[c] = coefficients.of_x;
    constant[c] = coefficients.constant;
  }
};

// Computes dx for some rows. `weights` points to the position weights of the rows, or is null.
// Without weights two rows at a time use the per-channel numbers together; the two rows are far
// apart, as add_rows in batch_norm_moments.cpp explains.
template <class T, class A, ReluMask mask>
void apply_grad_rows(const GradientSource<T, A, mask> from, T* dx, const A* weights,
                     std::int64_t rows, std::int64_t width, const OutputCoefficientArrays<A>& f,
                     const GradientCoefficientArrays<A>& d) {
  const A *center = f.center.data(), *scale = f.scale.data(), *shift = f.shift.data();
  const A *a = d.of_g.data(), *b = d.of_x.data(), *c = d.constant.data();
  const std::int64_t steps = rows / 2, apart = steps * width;
  const auto row = [&](std::int64_t r) {
    const A w = weights ? weights[r] : A(1);
    const bool counts = w != 0;  // x may be NaN where the weight is 0.
    const auto here = from.at(r * width);
    T* to = dx + r * width;
    for_lanes<T>(width, [&](std::int64_t i, auto as) {
      const auto x = as.load(here.x + i), k = as.get(center + i);
      const auto g = here.g(i, as, x, k, as.get(scale + i), as.get(shift + i));
      auto total = as.get(a + i) * g;
      if (counts) total += w * (as.get(b + i) * (x - k) + as.get(c + i));
      as.store(to + i, total);
    });
  };
  if (weights) {
    for (std::int64_t r = 0; r < rows; ++r) row(r);
    return;
  }
  for (std::int64_t at = 0; at < apart; at += width)
    for_lanes<T>(width, [&](std::int64_t i, auto as) {
      const auto k = as.get(center + i), s = as.get(scale + i), t = as.get(shift + i);
      const auto of_g = as.get(a + i), of_x = as.get(b + i), constant = as.get(c + i);
      const std::int64_t first = at + i, second = first + apart;
      const auto x0 = as.load(from.x + first), x1 = as.load(from.x + second);
      const auto g0 = from.g(first, as, x0, k, s, t), g1 = from.g(second, as, x1, k, s, t);
      as.store(dx + first, of_g * g0 + (of_x * (x0 - k) + constant));
      as.store(dx + second, of_g * g1 + (of_x * (x1 - k) + constant));
    });
  if (rows % 2 != 0) row(rows - 1);
}

template <class T, class A, ReluMask mask>
void apply_grad_plane(const GradientSource<T, A, mask> from, T* dx, const A* weights,
                      std::int64_t n, std::size_t channel, const OutputCoefficientArrays<A>& f,
                      const GradientCoefficientArrays<A>& d) {
  const A k = f.center[channel], s = f.scale[channel], t = f.shift[channel];
  const A a = d.of_g[channel], b = d.of_x[channel], c = d.constant[channel];
  for_lanes<T>(n, [&](std::int64_t i, auto as) {
    const auto x = as.load(from.x + i);
    const auto g = from.g(i, as, x, k, s, t);
    auto of_sums = b * (x - k) + c;
    if (weights) {
      const auto w = as.get(weights + i);
      of_sums = w != decltype(w){} ? of_sums * w
                                   : decltype(w){};  // x may be NaN where its weight is 0.
    }
    as.store(dx + i, a * g + of_sums);
  });
}

template <class T, ReluMask mask>
void apply_grad_as(const ActivationLayout& layout, const InputGradient& arguments) {
  using A = Accumulate<T>;
  const std::vector<A> w = weight_values<A>(arguments.position_weights, layout);
  const std::int64_t channels = layout.channels, inner = layout.inner;
  const std::int64_t group = layout.is_rows && w.empty() ? layout.rows_in_group() : 1,
                     width = group * channels, groups = layout.outer / group;
  const OutputCoefficientArrays<A> out(arguments.saved.normalization, channels, group);
  const GradientCoefficientArrays<A> grad(arguments, channels, group);
  const GradientSource<T, A, mask> source(arguments.dy, arguments.saved);
  T* dx = arguments.dx.data<T>();
  if (!layout.is_rows) {
    parallel_backwards(layout.outer * channels, 16384 / inner,
                       std::max<std::int64_t>(1, elements_in_block / inner),
                       [&](std::int64_t first, std::int64_t last) {
                         for (std::int64_t plane = first; plane < last; ++plane)
                           apply_grad_plane(
                               source.at(plane * inner), dx + plane * inner,
                               w.empty() ? nullptr : w.data() + plane / channels * inner, inner,
                               static_cast<std::size_t>(plane % channels), out, grad);
                       });
    return;
  }
  const std::int64_t rest = groups * group;
  apply_grad_rows<T, A, mask>(source.at(rest * channels), dx + rest * channels, nullptr,
                              layout.outer - rest, channels, out, grad);
  parallel_backwards(
      groups, 16384 / width, std::max<std::int64_t>(2, elements_in_block / width / 2 * 2),
      [&](std::int64_t first, std::int64_t last) {
        apply_grad_rows(source.at(first * width), dx + first * width,
                        w.empty() ? nullptr : w.data() + first, last - first, width, out, grad);
      });
}

}  // namespace

void batch_norm_apply_grad(const InputGradient& arguments) {
  const ActivationLayout layout(arguments.saved.x);
  if (layout.outer == 0) return;
  dispatch(RealTypes{}, arguments.dy.dtype(), "batch_norm", [&]<class T>() {
    with_relu_mask(arguments.saved.normalization,
                   [&]<ReluMask mask>() { apply_grad_as<T, mask>(layout, arguments); });
  });
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
