// Count, mean and M2 of every channel on the CPU, in one pass over x.
//
// Runs are summed in float32 as deviations from a shift and merged in float64 by Chan's formula
// (Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances", 1979). The shift is the mean so far, which bounds the cancellation: a run far from it
// contributes as much to M2 as it loses. The first run goes by the mean of its first values: an
// outlier among them, k away, shifts by k / 8 and adds k^2 to M2, so that a run of m elements loses
// m / 64 roundings at worst. In planes the first run goes by one value. Then, and with weights, it
// is kept short and the next ones grow.
#include "batch_norm_tables.h"
#include "batch_norm_view.h"

#include <cmath>

namespace tutti::kernels::cpu {
namespace {

constexpr std::int64_t longest_rows = 128, longest_plane = 2048;  // runs: what is summed in float32
constexpr std::int64_t first_rows = 8;                            // whose mean is the first shift
constexpr std::int64_t narrow = 64;  // channels whose sums are kept in registers

// The length of a run after `before` elements where the first one goes by one value.
std::int64_t growing(double before, std::int64_t longest) {
  return before < static_cast<double>(longest) / 16
             ? std::max<std::int64_t>(16, static_cast<std::int64_t>(16 * before))
             : longest;
}

// The first of n positions that counts; n where none does.
template <class A>
std::int64_t first_weighted(const A* weights, std::int64_t n) {
  return std::find_if(weights, weights + n, [](A w) { return w > 0; }) - weights;
}

// Adds `rows` rows to sum (of x - shift) and square (of its square). Four rows at a time, to touch
// the sums less, which lie far apart: each then is a stream of its own to the prefetcher, which
// gives up on rows side by side.
template <class T, class A>
void add_rows(const T* __restrict x, std::int64_t rows, std::int64_t stride, std::int64_t width,
              const A* __restrict shift, A* __restrict sum, A* __restrict square) {
  constexpr std::int64_t streams = 4;
  const std::int64_t steps = rows / streams, apart = steps * stride;
  for (std::int64_t r = 0; r < steps; ++r, x += stride)
    for_lanes<T>(width, [&](std::int64_t c, auto as) {
      const auto k = as.get(shift + c);
      const auto d0 = as.load(x + c) - k, d1 = as.load(x + c + apart) - k;
      const auto d2 = as.load(x + c + 2 * apart) - k, d3 = as.load(x + c + 3 * apart) - k;
      as.put(sum + c, as.get(sum + c) + ((d0 + d1) + (d2 + d3)));
      as.put(square + c, as.get(square + c) + ((d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)));
    });
  x += (streams - 1) * apart;
  for (std::int64_t r = steps * streams; r < rows; ++r, x += stride)
    for_lanes<T>(width, [&](std::int64_t c, auto as) {
      const auto d = as.load(x + c) - as.get(shift + c);
      as.put(sum + c, as.get(sum + c) + d);
      as.put(square + c, as.get(square + c) + d * d);
    });
}

// The same for rows of `narrow` values, in the order of memory with everything but x in registers.
template <class T, class A>
void add_narrow_rows(const T* x, std::int64_t rows, const A* shift, A* sum, A* square) {
  using L = Vector<T>;
  constexpr std::int64_t blocks = narrow / L::width;
  typename L::V k[blocks], s[blocks], q[blocks];
  for (std::int64_t b = 0; b < blocks; ++b) {
    k[b] = L::get(shift + b * L::width);
    s[b] = L::get(sum + b * L::width);
    q[b] = L::get(square + b * L::width);
  }
  for (std::int64_t r = 0; r < rows; ++r, x += narrow)
    for (std::int64_t b = 0; b < blocks; ++b) {
      const auto d = L::load(x + b * L::width) - k[b];
      s[b] += d;
      q[b] += d * d;
    }
  for (std::int64_t b = 0; b < blocks; ++b) {
    L::put(sum + b * L::width, s[b]);
    L::put(square + b * L::width, q[b]);
  }
}

template <class T, class A>
void add_weighted_rows(const T* __restrict x, const A* __restrict weights, std::int64_t rows,
                       std::int64_t stride, std::int64_t width, const A* __restrict shift,
                       A* __restrict sum, A* __restrict square) {
  for (std::int64_t r = 0; r < rows; ++r, x += stride) {
    if (weights[r] == 0) continue;  // x may be NaN there
    for (std::int64_t c = 0; c < width; ++c) {
      const A d = A(x[c]) - shift[c], wd = weights[r] * d;
      sum[c] += wd;
      square[c] += wd * d;
    }
  }
}

// Merges a run of count m into (n, mean, M2).
inline void merge(double n, double m, double shift, double sum, double square, double& mean,
                  double& m2) {
  const double of_run = sum / m, share = m / (n + m);
  const double delta = shift + of_run - mean;
  mean += delta * share;
  m2 += std::max(0.0, square - sum * of_run) + delta * delta * n * share;
}

template <class A>
double total_of(const A* weights, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(weights[i]);
  return sum;
}

// The moments of `rows` rows of `width` values; returns the count. `weights` may be null.
template <class T, class A>
double row_moments(const T* x, const A* weights, std::int64_t rows, std::int64_t stride,
                   std::int64_t width, double* mean, double* m2) {
  const auto size = static_cast<std::size_t>(width);
  std::vector<A> shift(size), sum(size), square(size);
  std::fill_n(mean, width, 0.0);
  std::fill_n(m2, width, 0.0);
  if (rows == 0) return 0;
  const std::int64_t first = weights ? first_weighted(weights, rows) : 0,
                     count = weights ? 1 : std::min(first_rows, rows);
  if (first == rows) return 0;
  const A part = A(1) / static_cast<A>(count);
  for (std::int64_t r = 0; r < count; ++r)
    for_lanes<T>(width, [&](std::int64_t c, auto as) {  // as deviations from the first, so that
                                                        // equal values have themselves as mean
      const auto base = as.load(x + first * stride + c),
                 value = as.load(x + (first + r) * stride + c);
      as.put(shift.data() + c, r == 0 ? base : as.get(shift.data() + c) + (value - base) * part);
    });
  double n = 0;
  for (std::int64_t r = 0, length = 0; r < rows; r += length) {
    length = std::min(weights ? growing(n, longest_rows) : longest_rows, rows - r);
    std::fill(sum.begin(), sum.end(), A(0));
    std::fill(square.begin(), square.end(), A(0));
    double m = static_cast<double>(length);
    if (weights) {
      m = total_of(weights + r, length);
      if (m <= 0) continue;
      add_weighted_rows(x + r * stride, weights + r, length, stride, width, shift.data(),
                        sum.data(), square.data());
    } else if (width == narrow && stride == narrow) {
      add_narrow_rows(x + r * stride, length, shift.data(), sum.data(), square.data());
    } else {
      add_rows(x + r * stride, length, stride, width, shift.data(), sum.data(), square.data());
    }
    const double per_m = 1 / m, share = m / (n + m), cross = n * share;
    for (std::size_t c = 0; c < size; ++c) {
      const double of_run = static_cast<double>(sum[c]) * per_m;
      const double delta = static_cast<double>(shift[c]) + of_run - mean[c];
      const double inside = static_cast<double>(square[c]) - static_cast<double>(sum[c]) * of_run;
      mean[c] += delta * share;
      m2[c] += (inside > 0 ? inside : 0) + delta * delta * cross;
      shift[c] = static_cast<A>(mean[c]);
    }
    n += m;
  }
  return n;
}

// The same for a tile of rows and channels [0, channels) of a row, narrow rows being read side by
// side.
template <class T, class A>
double tile_of_rows(const T* x, const A* weights, const View& v, std::int64_t rows,
                    std::int64_t channels, double* mean, double* m2) {
  const std::int64_t group = weights || channels != v.channels ? 1 : v.group(narrow);
  if (group == 1) return row_moments(x, weights, rows, v.channels, channels, mean, m2);
  const std::int64_t wide = rows / group, width = group * channels;
  std::vector<double> means(static_cast<std::size_t>(width)), m2s(means.size());
  double n =
      row_moments(x + wide * width, weights, rows - wide * group, channels, channels, mean, m2);
  const double m = row_moments(x, weights, wide, width, width, means.data(), m2s.data());
  if (m == 0) return n;
  for (std::int64_t g = 0; g < group; ++g, n += m)
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto i = static_cast<std::size_t>(g * channels + c);
      merge(n, m, means[i], 0, m2s[i], mean[c], m2[c]);
    }
  return n;
}

// What a run along planes has summed: deviations from a shift, their squares, and the weights.
template <class T, class A>
struct PlaneSums {
  using L = Vector<T>;
  typename L::V sums = {}, squares = {};
  A sum = 0, square = 0;  // of what is too short for a vector
  double count = 0;

  // Values without weight count for nothing, whatever they are.
  template <class V>
  [[gnu::always_inline]] static void add_weighted(V d, V w, V& s, V& q) {
    d = w != V{} ? d : V{};
    s += w * d;
    q += w * d * d;
  }

  template <bool weighted>
  void add(const T* x, const A* weights, std::int64_t n, A shift) {
    auto s = sums, q = squares;
    std::int64_t i = 0;
    for (; i + L::width <= n; i += L::width) {
      const auto d = L::load(x + i) - shift;
      if constexpr (weighted) {
        add_weighted(d, L::get(weights + i), s, q);
      } else {
        s += d;
        q += d * d;
      }
    }
    if (i < n && n >= L::width) {  // the vector that ends at n, without what has been summed
      const auto fresh = L::get(counting<A>) >= static_cast<A>(i - (n - L::width));
      auto d = L::load(x + n - L::width) - shift;
      d = fresh ? d : typename L::V{};
      if constexpr (weighted) {
        add_weighted(d, L::get(weights + n - L::width), s, q);
      } else {
        s += d;
        q += d * d;
      }
      i = n;
    }
    sums = s;
    squares = q;
    for (; i < n; ++i) {
      const A d = A(x[i]) - shift;
      if constexpr (weighted) {
        add_weighted(d, weights[i], sum, square);
      } else {
        sum += d;
        square += d * d;
      }
    }
    count += weighted ? total_of(weights, n) : static_cast<double>(n);
  }
  double deviation() const { return static_cast<double>(sum + total(sums)); }
  double squared() const { return static_cast<double>(square + total(squares)); }
};

// A tile of planes: samples [0, samples) and channels [0, channels). A run goes on from sample to
// sample, because small planes are too short for one; that reads `samples` stretches of memory side
// by side.
template <bool weighted, class T, class A>
double tile_of_planes(const T* x, const A* weights, const View& v, std::int64_t samples,
                      std::int64_t channels, double* mean, double* m2) {
  double n = 0;
  for (std::int64_t c = 0; c < channels; ++c) {
    n = mean[c] = m2[c] = 0;
    std::int64_t done = 0;
    for (std::int64_t s = 0, at = 0; s < samples;) {
      const T* plane = x + (s * v.channels + c) * v.inner;
      const std::int64_t first =
          weighted && n == 0 ? first_weighted(weights + s * v.inner + at, v.inner - at) : 0;
      if (first == v.inner - at) {  // nothing counts, so there is nothing to shift by
        at = 0, ++s;
        continue;
      }
      const A shift = n == 0 ? A(plane[at + first]) : static_cast<A>(mean[c]);
      PlaneSums<T, A> run;
      for (std::int64_t left = growing(static_cast<double>(done), longest_plane);
           left > 0 && s < samples;) {
        const std::int64_t length = std::min(left, v.inner - at);
        run.template add<weighted>(x + (s * v.channels + c) * v.inner + at,
                                   weighted ? weights + s * v.inner + at : nullptr, length, shift);
        left -= length, done += length, at += length;
        if (at == v.inner) at = 0, ++s;
      }
      if (run.count <= 0) continue;
      merge(n, run.count, static_cast<double>(shift), run.deviation(), run.squared(), mean[c],
            m2[c]);
      n += run.count;
    }
  }
  return n;
}

template <class T>
void moments_of(const View& v, const T* x, const Tensor& weights, double* packet) {
  using A = Accumulate<T>;
  const Tiles tiles(v);
  const std::vector<A> w = weight_values<A>(weights, v);
  const std::int64_t C = v.channels;
  std::vector<double> partial(static_cast<std::size_t>(tiles.chunks * 2 * C)),
      counts(static_cast<std::size_t>(tiles.chunks));
  tiles.run(v, [&](std::int64_t k, std::int64_t from, std::int64_t to, std::int64_t c0,
                   std::int64_t c1) {
    double *mean = partial.data() + 2 * k * C + c0, *m2 = mean + C;
    const A* of_tile = w.empty() ? nullptr : w.data() + from * v.inner;
    const T* begin = x + from * C * v.inner + c0 * v.inner;
    const double n = v.rows ? tile_of_rows(begin, of_tile, v, to - from, c1 - c0, mean, m2)
                     : w.empty()
                         ? tile_of_planes<false>(begin, of_tile, v, to - from, c1 - c0, mean, m2)
                         : tile_of_planes<true>(begin, of_tile, v, to - from, c1 - c0, mean, m2);
    if (c0 == 0) counts[static_cast<std::size_t>(k)] = n;
  });
  double n = 0, *mean = packet + packet_header_size, *m2 = mean + C;
  std::fill_n(mean, 2 * C, 0.0);
  for (std::int64_t k = 0; k < tiles.chunks; ++k) {
    const double m = counts[static_cast<std::size_t>(k)];
    if (m <= 0) continue;
    const double *means = partial.data() + 2 * k * C, *m2s = means + C, share = m / (n + m);
    for (std::int64_t c = 0; c < C; ++c) {
      const double delta = means[c] - mean[c];
      mean[c] += delta * share;
      m2[c] += m2s[c] + delta * delta * n * share;
    }
    n += m;
  }
  packet[0] = n;
}

}  // namespace

void batch_norm_moments(const Tensor& x, const Tensor& weights, const Tensor& packet) {
  const View v(x);
  dispatch(RealTypes{}, x.dtype(), "batch_norm",
           [&]<class T>() { moments_of<T>(v, x.data<T>(), weights, packet.data<double>()); });
}

}  // namespace tutti::kernels::cpu
