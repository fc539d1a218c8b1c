// This file computes the gradient sums of batch norm on the CPU, sum g and sum g (x - mean) of
// every channel, in one pass over dy and x. The pass also writes g if the caller wants it.
#include "../element_types.h"
#include "batch_norm_gradient.h"

#include <algorithm>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

// Returns what an element adds to the second sum: g times its deviation. If `weighted`, x may be
// NaN where g is 0, and the product is 0 there.
template <bool weighted, class V>
[[gnu::always_inline]] inline V product(V g, V deviation) {
  if constexpr (weighted) return g != V{} ? g * deviation : V{};
  return g * deviation;
}

// The largest number of rows that are summed in float32 before their sums go to float64.
constexpr std::int64_t long_run = 128;

// Adds g of each row to s1 and g (x - center) to s2, and writes g to `masked` if `write`. It
// processes two rows at a time, which are far apart in memory, as add_rows in
// batch_norm_moments.cpp explains.
template <class T, class A, ReluMask mask, bool write, bool weighted>
void add_rows(const GradientSource<T, A, mask> from, T* masked, std::int64_t rows,
              std::int64_t stride, std::int64_t width, const A* __restrict center,
              const A* __restrict scale, const A* __restrict shift, A* __restrict s1,
              A* __restrict s2) {
  const std::int64_t steps = rows / 2, apart = steps * stride;
  const auto element = [&](std::int64_t i, std::int64_t c, auto as, auto& a, auto& b) {
    const auto x = as.load(from.x + i), k = as.get(center + c);
    const auto g = from.g(i, as, x, k, as.get(scale + c), as.get(shift + c));
    a += g;
    b += product<weighted>(g, x - k);
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

template <class T, class A, ReluMask mask, bool write, bool weighted>
void sum_rows(const GradientSource<T, A, mask> in, T* masked, std::int64_t rows,
              std::int64_t stride, std::int64_t width, std::int64_t channels,
              const OutputCoefficientArrays<A>& f, std::int64_t first_channel, double* sum1,
              double* sum2) {
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

template <class T, class A, ReluMask mask, bool write, bool weighted>
void sum_planes(const GradientSource<T, A, mask> from, T* masked, const ActivationLayout& v,
                std::int64_t samples, std::int64_t channels, const OutputCoefficientArrays<A>& f,
                std::int64_t first_channel, double* sum1, double* sum2) {
  constexpr std::int64_t long_plane = 2048, lanes = Vector<T>::width;
  std::vector<A> s1(static_cast<std::size_t>(v.has_short_planes() ? channels * lanes : 0)),
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
          b += product<weighted>(g, x - k);
          if constexpr (write) as.store(out + i, g);
        };
        if (v.has_short_planes()) {
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

template <class T, ReluMask mask, bool write, bool weighted>
void gradient_sums_as(const ActivationLayout& v, const GradientSums& arguments) {
  const SavedForward& of = arguments.saved;
  using A = Accumulate<T>;
  const std::int64_t C = v.channels, group = v.is_rows ? v.rows_in_group() : 1;
  const GradientSource<T, A, mask> in(arguments.dy, of);
  T* masked = write ? arguments.masked_dy.data<T>() : nullptr;
  const OutputCoefficientArrays<A> f(of.normalization, C, group);
  const Tiles tiles(v);
  std::vector<double> partial(static_cast<std::size_t>(tiles.chunks * 2 * C));
  tiles.run(v, [&](const Tile& tile) {
    const std::int64_t k = tile.chunk, from = tile.first, to = tile.last, c0 = tile.first_channel,
                       c1 = tile.last_channel;
    double *sum1 = partial.data() + 2 * k * C + c0, *sum2 = sum1 + C;
    const std::int64_t at = (from * C + c0) * v.inner, channels = c1 - c0;
    const auto here = in.at(at);
    T* here_out = write ? masked + at : nullptr;
    if (!v.is_rows) {
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
  double *sum1 = arguments.sums.data<double>() + packet_header_size, *sum2 = sum1 + C;
  std::fill_n(sum1, 2 * C, 0.0);
  for (std::int64_t k = 0; k < tiles.chunks; ++k)
    for (std::int64_t c = 0; c < 2 * C; ++c)
      sum1[c] += partial[static_cast<std::size_t>(2 * k * C + c)];
  // The sums were computed around the mean rounded to A; this converts them to the exact mean.
  const double* mean = of.normalization.mean.data<double>();
  for (std::int64_t c = 0; c < C; ++c)
    sum2[c] -= (mean[c] - static_cast<double>(f.center[static_cast<std::size_t>(c)])) * sum1[c];
}

}  // namespace

void batch_norm_gradient_sums(const GradientSums& arguments) {
  const SavedForward& saved = arguments.saved;
  const ActivationLayout layout(saved.x);
  dispatch(RealTypes{}, arguments.dy.dtype(), "batch_norm", [&]<class T>() {
    dispatch_flag(saved.weighted, [&]<bool weighted>() {
      with_relu_mask(saved.normalization, [&]<ReluMask mask>() {
        dispatch_flag(arguments.masked_dy.defined(), [&]<bool write>() {
          gradient_sums_as<T, mask, write, weighted>(layout, arguments);
        });
      });
    });
  });
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
