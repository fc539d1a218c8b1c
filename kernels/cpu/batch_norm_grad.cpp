// The backward kernels of batch norm on the CPU: the gradient sums, and dx.
//
// With g = dy where the ReLU passed and 0 elsewhere, S1 = sum g, S2 = sum g (x - mean) and N over
// all ranks:
//   dx = weight rstd (g - S1 / N - (x - mean) rstd^2 S2 / N)
// which is a g + b (x - center) + c for three numbers of the channel.
#include "batch_norm_tables.h"
#include "batch_norm_view.h"

namespace tutti::kernels::cpu {
namespace {

enum class Mask { none, from_input, from_output };

// Pointers at one element and what a mask needs to know; g is the gradient below the ReLU where x
// is `x_i`.
template <class T, class A, Mask mask>
struct Source {
  const T* __restrict dy;
  const T* __restrict x;
  const T* __restrict y;

  template <class Lanes, class V, class K>
  [[gnu::always_inline]] V g(std::int64_t i, Lanes as, V x_i, K center, K scale, K shift) const {
    const V d = as.load(dy + i);
    if constexpr (mask == Mask::from_input) return (x_i - center) * scale + shift > V{} ? d : V{};
    if constexpr (mask == Mask::from_output) return as.load(y + i) > V{} ? d : V{};
    return d;
  }
  // What an element adds to S2.
  template <bool weighted, class V>
  [[gnu::always_inline]] static V product(V g, V deviation) {
    if constexpr (weighted)
      return g != V{} ? g * deviation : V{};  // a position that does not count may hold NaN
    return g * deviation;
  }
  Source at(std::int64_t offset) const {
    return {dy + offset, x + offset, mask == Mask::from_output ? y + offset : y};
  }
};

constexpr std::int64_t long_run = 128;  // rows that are summed in float32

// Adds rows to s1 (of g) and s2 (of g (x - center)); writes g where asked to. Two rows at a time,
// far apart: see add_rows in batch_norm_moments.cpp.
template <class T, class A, Mask mask, bool write, bool weighted>
void add_rows(const Source<T, A, mask> from, T* masked, std::int64_t rows, std::int64_t stride,
              std::int64_t width, const A* __restrict center, const A* __restrict scale,
              const A* __restrict shift, A* __restrict s1, A* __restrict s2) {
  const std::int64_t steps = rows / 2, apart = steps * stride;
  const auto element = [&](std::int64_t i, std::int64_t c, auto as, auto& a, auto& b) {
    const auto x = as.load(from.x + i), k = as.get(center + c);
    const auto g = from.g(i, as, x, k, as.get(scale + c), as.get(shift + c));
    a += g;
    b += from.template product<weighted>(g, x - k);
    if constexpr (write) as.store(masked + i, g);
  };
  for (std::int64_t r = 0; r < steps; ++r)
    for_lanes<T>(width, [&](std::int64_t c, auto as) {
      auto a = as.get(s1 + c), b = as.get(s2 + c);
      element(r * stride + c, c, as, a, b);
      element(r * stride + c + apart, c, as, a, b);
      as.put(s1 + c, a);
      as.put(s2 + c, b);
    });
  for (std::int64_t r = 2 * steps; r < rows; ++r)
    for_lanes<T>(width, [&](std::int64_t c, auto as) {
      auto a = as.get(s1 + c), b = as.get(s2 + c);
      element(r * stride + c, c, as, a, b);
      as.put(s1 + c, a);
      as.put(s2 + c, b);
    });
}

template <class T, class A, Mask mask, bool write, bool weighted>
void sum_rows(const Source<T, A, mask> in, T* masked, std::int64_t rows, std::int64_t stride,
              std::int64_t width, std::int64_t channels, const Affine<A>& f,
              std::int64_t first_channel, double* sum1, double* sum2) {
  const auto size = static_cast<std::size_t>(width);
  std::vector<A> s1(size), s2(size);
  for (std::int64_t r = 0; r < rows; r += long_run) {
    const std::int64_t at = r * stride;
    std::fill(s1.begin(), s1.end(), A(0));
    std::fill(s2.begin(), s2.end(), A(0));
    add_rows<T, A, mask, write, weighted>(
        in.at(at), write ? masked + at : nullptr, std::min(long_run, rows - r), stride, width,
        f.center.data() + first_channel, f.scale.data() + first_channel,
        f.shift.data() + first_channel, s1.data(), s2.data());
    for (std::int64_t first = 0; first < width; first += channels)
      for (std::int64_t c = 0; c < channels; ++c) {
        sum1[c] += static_cast<double>(s1[static_cast<std::size_t>(first + c)]);
        sum2[c] += static_cast<double>(s2[static_cast<std::size_t>(first + c)]);
      }
  }
}

template <class T, class A, Mask mask, bool write, bool weighted>
void sum_planes(const Source<T, A, mask> from, T* masked, const View& v, std::int64_t samples,
                std::int64_t channels, const Affine<A>& f, std::int64_t first_channel, double* sum1,
                double* sum2) {
  constexpr std::int64_t long_plane = 2048, lanes = Vector<T>::width;
  std::vector<A> s1(static_cast<std::size_t>(v.short_planes() ? channels * lanes : 0)),
      s2(s1.size());
  const auto flush = [&] {
    for (std::size_t i = 0; i < s1.size(); i += lanes) {
      sum1[i / lanes] += static_cast<double>(total(Vector<T>::get(s1.data() + i)));
      sum2[i / lanes] += static_cast<double>(total(Vector<T>::get(s2.data() + i)));
    }
    std::fill(s1.begin(), s1.end(), A(0));
    std::fill(s2.begin(), s2.end(), A(0));
  };
  for (std::int64_t s = 0, in_run = 0; s < samples; ++s) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto of = static_cast<std::size_t>(first_channel + c);
      const A k = f.center[of], scale = f.scale[of], shift = f.shift[of];
      for (std::int64_t first = 0; first < v.inner; first += long_plane) {
        const std::int64_t at = (s * v.channels + c) * v.inner + first,
                           n = std::min(long_plane, v.inner - first);
        const auto here = from.at(at);
        T* out = write ? masked + at : nullptr;
        const auto add = [&](std::int64_t i, auto as, auto& a, auto& b) {
          const auto x = as.load(here.x + i);
          const auto g = here.g(i, as, x, k, scale, shift);
          a += g;
          b += here.template product<weighted>(g, x - k);
          if constexpr (write) as.store(out + i, g);
        };
        if (v.short_planes()) {
          accumulate_lanes<T>(n, s1.data() + c * lanes, s2.data() + c * lanes, add);
        } else {
          A a = 0, b = 0;
          sum_lanes<T>(n, a, b, add);
          sum1[c] += static_cast<double>(a);
          sum2[c] += static_cast<double>(b);
        }
      }
    }
    in_run += v.inner;
    if (in_run >= long_plane) {
      flush();
      in_run = 0;
    }
  }
  flush();
}

template <class T, Mask mask, bool write, bool weighted>
void reduce_grad_as(const View& v, const Tensor& dy, const SavedForward& of, double* sums,
                    const Tensor& out) {
  using A = Accumulate<T>;
  const std::int64_t C = v.channels, group = v.rows ? v.group() : 1;
  const Source<T, A, mask> in{dy.data<T>(), of.x.data<T>(),
                              mask == Mask::from_output ? of.output.data<T>() : nullptr};
  T* masked = write ? out.data<T>() : nullptr;
  const Affine<A> f(of.normalization, C, group);
  const Tiles tiles(v);
  std::vector<double> partial(static_cast<std::size_t>(tiles.chunks * 2 * C));
  tiles.run(v, [&](std::int64_t k, std::int64_t from, std::int64_t to, std::int64_t c0,
                   std::int64_t c1) {
    double *sum1 = partial.data() + 2 * k * C + c0, *sum2 = sum1 + C;
    const std::int64_t at = (from * C + c0) * v.inner, channels = c1 - c0;
    const auto here = in.at(at);
    T* here_out = write ? masked + at : nullptr;
    if (!v.rows) {
      sum_planes<T, A, mask, write, weighted>(here, here_out, v, to - from, channels, f, c0, sum1,
                                              sum2);
    } else if (channels == C && group > 1) {
      const std::int64_t wide = (to - from) / group, width = group * C, rest = wide * width;
      sum_rows<T, A, mask, write, weighted>(here, here_out, wide, width, width, C, f, 0, sum1,
                                            sum2);
      sum_rows<T, A, mask, write, weighted>(here.at(rest), write ? here_out + rest : nullptr,
                                            to - from - wide * group, C, C, C, f, 0, sum1, sum2);
    } else {
      sum_rows<T, A, mask, write, weighted>(here, here_out, to - from, C, channels, channels, f, c0,
                                            sum1, sum2);
    }
  });
  double *sum1 = sums + packet_header_size, *sum2 = sum1 + C;
  std::fill_n(sum1, 2 * C, 0.0);
  for (std::int64_t k = 0; k < tiles.chunks; ++k)
    for (std::int64_t c = 0; c < 2 * C; ++c)
      sum1[c] += partial[static_cast<std::size_t>(2 * k * C + c)];
  // The sums were taken around the rounded mean.
  const double* mean = of.normalization.mean.data<double>();
  for (std::int64_t c = 0; c < C; ++c)
    sum2[c] -= (mean[c] - static_cast<double>(f.center[static_cast<std::size_t>(c)])) * sum1[c];
}

// dx = a g + w (b (x - center) + c), w being the weight of the position.
template <class A>
struct GradAffine {
  std::vector<A> a, b, c;

  GradAffine(const SavedForward& of, const Affine<A>& f, const double* sums, const double* moments,
             Epsilon eps, std::int64_t channels, std::int64_t group) {
    const double *mean = of.normalization.mean.data<double>(),
                 *rstd = of.normalization.rstd.data<double>();
    const auto weight = channel_values(of.normalization.weight, channels, 1);
    for (auto* values : {&a, &b, &c}) values->resize(static_cast<std::size_t>(channels * group));
    const double n = sums ? moments[0] : 0;
    if (n > 0) {
      const double *s1 = sums + packet_header_size, *s2 = s1 + channels,
                   *m2 = moments + packet_header_size + channels;
      const double per_n = 1 / n, floor = eps.floor ? eps.value : -1;
      for (std::size_t ch = 0; ch < static_cast<std::size_t>(channels); ++ch) {
        const double factor = weight[ch] * rstd[ch],
                     of_x = -factor * rstd[ch] * rstd[ch] * s2[ch] * per_n;
        const double kept =
            m2[ch] * per_n < floor ? 0 : of_x;  // a variance below the floor is a constant
        a[ch] = static_cast<A>(factor);
        b[ch] = static_cast<A>(kept);
        c[ch] = static_cast<A>(-factor * s1[ch] * per_n -
                               kept * (mean[ch] - static_cast<double>(f.center[ch])));
      }
    } else {
      for (std::size_t ch = 0; ch < static_cast<std::size_t>(channels); ++ch)
        a[ch] = static_cast<A>(weight[ch] * rstd[ch]);
    }
    for (auto* values : {&a, &b, &c}) repeat(*values, channels);
  }
};

// Two rows at a time, far apart, as in add_rows; `weights`, of the rows, may be null. dx may be dy:
// each element is read before it is written, by the same step.
template <class T, class A, Mask mask>
void apply_grad_rows(const Source<T, A, mask> from, T* dx, const A* weights, std::int64_t rows,
                     std::int64_t width, const Affine<A>& f, const GradAffine<A>& d) {
  const A *center = f.center.data(), *scale = f.scale.data(), *shift = f.shift.data();
  const A *a = d.a.data(), *b = d.b.data(), *c = d.c.data();
  const std::int64_t steps = rows / 2, apart = steps * width;
  const auto row = [&](std::int64_t r) {
    const A w = weights ? weights[r] : A(1);
    const bool counts = w != 0;  // else x may be NaN
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

template <class T, class A, Mask mask>
void apply_grad_plane(const Source<T, A, mask> from, T* dx, const A* weights, std::int64_t n,
                      std::size_t channel, const Affine<A>& f, const GradAffine<A>& d) {
  const A k = f.center[channel], s = f.scale[channel], t = f.shift[channel];
  const A a = d.a[channel], b = d.b[channel], c = d.c[channel];
  for_lanes<T>(n, [&](std::int64_t i, auto as) {
    const auto x = as.load(from.x + i);
    const auto g = from.g(i, as, x, k, s, t);
    auto of_sums = b * (x - k) + c;
    if (weights) {
      const auto w = as.get(weights + i);
      of_sums = w != decltype(w){} ? of_sums * w
                                   : decltype(w){};  // x may be NaN where it does not count
    }
    as.store(dx + i, a * g + of_sums);
  });
}

template <class T, Mask mask>
void apply_grad_as(const View& v, const InputGradient& arguments) {
  using A = Accumulate<T>;
  const SavedForward& of = arguments.saved;
  const Tensor &sums = arguments.sums, &moments = arguments.moments;
  const Tensor& weights = arguments.position_weights;
  const Epsilon eps = arguments.eps;
  T* dx = arguments.dx.data<T>();
  const Source<T, A, mask> in{arguments.dy.data<T>(), of.x.data<T>(),
                              mask == Mask::from_output ? of.output.data<T>() : nullptr};
  const std::vector<A> w = weight_values<A>(weights, v);
  const std::int64_t group = v.rows && w.empty() ? v.group() : 1, width = group * v.channels,
                     wide = v.outer / group;
  const Affine<A> f(of.normalization, v.channels, group);
  const GradAffine<A> d(of, f, sums.defined() ? sums.data<double>() : nullptr,
                        sums.defined() ? moments.data<double>() : nullptr, eps, v.channels, group);
  if (!v.rows) {
    parallel_backwards(v.outer * v.channels, std::max<std::int64_t>(1, 16384 / v.inner),
                       std::max<std::int64_t>(1, elements_in_turn / v.inner),
                       [&](std::int64_t first, std::int64_t last) {
                         for (std::int64_t p = first; p < last; ++p)
                           apply_grad_plane(
                               in.at(p * v.inner), dx + p * v.inner,
                               w.empty() ? nullptr : w.data() + p / v.channels * v.inner, v.inner,
                               static_cast<std::size_t>(p % v.channels), f, d);
                       });
    return;
  }
  const std::int64_t rest = wide * group;
  apply_grad_rows<T, A, mask>(in.at(rest * v.channels), dx + rest * v.channels, nullptr,
                              v.outer - rest, v.channels, f, d);
  parallel_backwards(wide, std::max<std::int64_t>(1, 16384 / width),
                     std::max<std::int64_t>(2, elements_in_turn / width / 2 * 2),
                     [&](std::int64_t first, std::int64_t last) {
                       apply_grad_rows(in.at(first * width), dx + first * width,
                                       w.empty() ? nullptr : w.data() + first, last - first, width,
                                       f, d);
                     });
}

// Calls body.operator()<mask>() for what the ReLU asks for.
template <class Body>
void with_mask(const SavedForward& of, const Body& body) {
  if (!of.normalization.relu) body.template operator()<Mask::none>();
  else if (of.normalization.residual.defined()) body.template operator()<Mask::from_output>();
  else body.template operator()<Mask::from_input>();
}

}  // namespace

void batch_norm_reduce_grad(const Tensor& dy, const SavedForward& of, const Tensor& sums,
                            const Tensor& masked) {
  const View v(of.x);
  dispatch(RealTypes{}, dy.dtype(), "batch_norm", [&]<class T>() {
    with_mask(of, [&]<Mask mask>() {
      double* to = sums.data<double>();
      if (of.weighted)
        masked.defined() ? reduce_grad_as<T, mask, true, true>(v, dy, of, to, masked)
                         : reduce_grad_as<T, mask, false, true>(v, dy, of, to, masked);
      else
        masked.defined() ? reduce_grad_as<T, mask, true, false>(v, dy, of, to, masked)
                         : reduce_grad_as<T, mask, false, false>(v, dy, of, to, masked);
    });
  });
}

void batch_norm_apply_grad(const InputGradient& arguments) {
  const SavedForward& of = arguments.saved;
  const View v(of.x);
  if (v.outer == 0) return;
  dispatch(RealTypes{}, arguments.dy.dtype(), "batch_norm", [&]<class T>() {
    with_mask(of, [&]<Mask mask>() { apply_grad_as<T, mask>(v, arguments); });
  });
}

}  // namespace tutti::kernels::cpu
