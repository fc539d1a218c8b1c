// This file computes count, mean and M2 of every channel in one pass over x on the CPU.
//
// Each run of elements is summed in float32 as deviations from a shift. Runs are merged in float64
// by Chan's formula (merge in kernels/batch_norm_math.h). The shift is the mean of all earlier
// elements. This bounds the cancellation: a run whose mean is far from the shift also makes M2
// itself large. The shift of the first run of rows is the mean of its first 8 values. An outlier
// among them at distance k moves the shift by k / 8 but adds k^2 to M2, so that a run of m elements
// loses at most m / 64 roundings of M2. In planes, and with weights, the shift of the first run is
// a single value; that run is short, and later runs grow.
#include "batch_norm_layout.h"

#include <algorithm>
#include <cmath>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

// The largest length of a run, which is summed in the accumulation type A: in rows, and in elements
// of a plane.
constexpr std::int64_t longest_rows = 128, longest_plane = 2048;
// The number of rows whose mean is the first shift.
constexpr std::int64_t first_rows = 8;
// The row width for which the sums of all values of a row are kept in registers.
constexpr std::int64_t narrow = 64;

// Returns the length of a run that follows `before` elements if the shift of the first run is a
// single value.
std::int64_t growing(double before, std::int64_t longest) {
  return before < static_cast<double>(longest) / 16
             ? std::max<std::int64_t>(16, static_cast<std::int64_t>(16 * before))
             : longest;
}

// Returns the index of the first of n positions whose weight is above 0; n if there is none.
template <class A>
std::int64_t first_weighted(const A* weights, std::int64_t n) {
  return std::find_if(weights, weights + n, [](A w) { return w > 0; }) - weights;
}

template <class A>
double total_of(const A* weights, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(weights[i]);
  return sum;
}

// Merges a run of m elements, whose sums were taken around `shift`, into the moments of n elements.
void merge_run(double n, double m, double shift, double sum, double squares, double& mean,
               double& m2) {
  const double of_run = sum / m;
  merge(n, m / (n + m), {shift + of_run, std::max(0.0, squares - sum * of_run)}, mean, m2);
}

// ---- Rows.

// Rows of `width` values that begin `stride` elements apart, and the weights of their positions,
// which may be null.
template <class T, class A>
struct Rows {
  const T* x;
  const A* weights;
  std::int64_t count, stride, width;

  Rows part(std::int64_t first, std::int64_t rows) const {
    return {x + first * stride, weights ? weights + first : nullptr, rows, stride, width};
  }
};

// The sums of a run of rows, for each value of a row.
template <class A>
struct RowSums {
  std::vector<A> shift, sum, square;  // Sums of x - shift and of its square.

  explicit RowSums(std::int64_t width)
      : shift(static_cast<std::size_t>(width)), sum(shift.size()), square(shift.size()) {}
  void clear() {
    std::fill(sum.begin(), sum.end(), A(0));
    std::fill(square.begin(), square.end(), A(0));
  }
};

// Adds rows without weights. It processes four rows at a time, so that the sums are loaded and
// stored less often. The four rows are far apart in memory, so that the prefetcher follows each of
// them as a stream of its own; it does not follow four neighbouring rows.
template <class T, class A>
void add_rows(const Rows<T, A>& rows, RowSums<A>& to) {
  constexpr std::int64_t streams = 4;
  const T* __restrict x = rows.x;
  const A* __restrict shift = to.shift.data();
  A* __restrict sum = to.sum.data();
  A* __restrict square = to.square.data();
  const std::int64_t steps = rows.count / streams, apart = steps * rows.stride;
  for (std::int64_t r = 0; r < steps; ++r, x += rows.stride)
    for_lanes<T>(rows.width, [&](std::int64_t c, auto lanes) {
      const auto k = lanes.get(shift + c);
      const auto d0 = lanes.load(x + c) - k, d1 = lanes.load(x + c + apart) - k;
      const auto d2 = lanes.load(x + c + 2 * apart) - k, d3 = lanes.load(x + c + 3 * apart) - k;
      lanes.put(sum + c, lanes.get(sum + c) + ((d0 + d1) + (d2 + d3)));
      lanes.put(square + c, lanes.get(square + c) + ((d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)));
    });
  x += (streams - 1) * apart;
  for (std::int64_t r = steps * streams; r < rows.count; ++r, x += rows.stride)
    for_lanes<T>(rows.width, [&](std::int64_t c, auto lanes) {
      const auto d = lanes.load(x + c) - lanes.get(shift + c);
      lanes.put(sum + c, lanes.get(sum + c) + d);
      lanes.put(square + c, lanes.get(square + c) + d * d);
    });
}

// Adds dense rows of `narrow` values without weights, in memory order, and keeps the shift and the
// sums in registers.
template <class T, class A>
void add_narrow_rows(const Rows<T, A>& rows, RowSums<A>& to) {
  using L = Vector<T>;
  constexpr std::int64_t blocks = narrow / L::width;
  typename L::V k[blocks], s[blocks], q[blocks];
  for (std::int64_t b = 0; b < blocks; ++b) {
    k[b] = L::get(to.shift.data() + b * L::width);
    s[b] = L::get(to.sum.data() + b * L::width);
    q[b] = L::get(to.square.data() + b * L::width);
  }
  const T* x = rows.x;
  for (std::int64_t r = 0; r < rows.count; ++r, x += narrow)
    for (std::int64_t b = 0; b < blocks; ++b) {
      const auto d = L::load(x + b * L::width) - k[b];
      s[b] += d;
      q[b] += d * d;
    }
  for (std::int64_t b = 0; b < blocks; ++b) {
    L::put(to.sum.data() + b * L::width, s[b]);
    L::put(to.square.data() + b * L::width, q[b]);
  }
}

// Adds rows with weights. Where a weight is 0, x may be NaN.
template <class T, class A>
void add_weighted_rows(const Rows<T, A>& rows, RowSums<A>& to) {
  const T* __restrict x = rows.x;
  const A* __restrict shift = to.shift.data();
  A* __restrict sum = to.sum.data();
  A* __restrict square = to.square.data();
  for (std::int64_t r = 0; r < rows.count; ++r, x += rows.stride) {
    const A weight = rows.weights[r];
    if (weight == 0) continue;
    for (std::int64_t c = 0; c < rows.width; ++c) {
      const A d = A(x[c]) - shift[c], wd = weight * d;
      sum[c] += wd;
      square[c] += wd * d;
    }
  }
}

// Sets the shift to the mean of the first rows or, if there are weights, to the first row whose
// weight is above 0. Returns false if there is no such row. The mean is computed from deviations
// from the first row, so that the mean of equal values is exact.
template <class T, class A>
bool set_first_shift(const Rows<T, A>& rows, std::vector<A>& shift) {
  if (rows.count == 0) return false;
  const std::int64_t first = rows.weights ? first_weighted(rows.weights, rows.count) : 0,
                     count = rows.weights ? 1 : std::min(first_rows, rows.count);
  if (first == rows.count) return false;
  const T* x = rows.x + first * rows.stride;
  const A part = A(1) / static_cast<A>(count);
  for (std::int64_t r = 0; r < count; ++r)
    for_lanes<T>(rows.width, [&](std::int64_t c, auto lanes) {
      const auto base = lanes.load(x + c), value = lanes.load(x + r * rows.stride + c);
      lanes.put(shift.data() + c,
                r == 0 ? base : lanes.get(shift.data() + c) + (value - base) * part);
    });
  return true;
}

// Merges a run of m rows into the moments of the n rows before it, and sets the shift to the new
// mean. It computes the same as merge_run, but divides outside the loop over channels.
template <class A>
void merge_rows(double n, double m, RowSums<A>& run, double* mean, double* m2) {
  const double per_m = 1 / m, share = m / (n + m), cross = n * share;
  for (std::size_t c = 0; c < run.sum.size(); ++c) {
    const double of_run = static_cast<double>(run.sum[c]) * per_m;
    const double delta = static_cast<double>(run.shift[c]) + of_run - mean[c];
    const double inside = static_cast<double>(run.square[c]) -
                          static_cast<double>(run.sum[c]) * of_run;
    mean[c] += delta * share;
    m2[c] += (inside > 0 ? inside : 0) + delta * delta * cross;
    run.shift[c] = static_cast<A>(mean[c]);
  }
}

// Writes mean and M2 of each value of a row; returns the count.
template <class T, class A>
double row_moments(const Rows<T, A>& rows, double* mean, double* m2) {
  std::fill_n(mean, rows.width, 0.0);
  std::fill_n(m2, rows.width, 0.0);
  RowSums<A> run(rows.width);
  if (!set_first_shift(rows, run.shift)) return 0;
  double n = 0;
  for (std::int64_t r = 0, length = 0; r < rows.count; r += length) {
    length = std::min(rows.weights ? growing(n, longest_rows) : longest_rows, rows.count - r);
    const Rows<T, A> part = rows.part(r, length);
    const double m = rows.weights ? total_of(part.weights, length) : static_cast<double>(length);
    if (m <= 0) continue;
    run.clear();
    if (rows.weights) add_weighted_rows(part, run);
    else if (rows.width == narrow && rows.stride == narrow) add_narrow_rows(part, run);
    else add_rows(part, run);
    merge_rows(n, m, run, mean, m2);
    n += m;
  }
  return n;
}

// ---- Planes.

// The sums of a run along planes: deviations from a shift, their squares, and the weights.
template <class T, class A>
struct PlaneSums {
  using L = Vector<T>;
  typename L::V sums = {}, squares = {};
  A sum = 0, square = 0;  // The sums over elements that do not fill a vector.
  double count = 0;

  // Adds weighted deviations. A value whose weight is 0 adds nothing, even if it is NaN.
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
    if (i < n && n >= L::width) {
      // The last elements are summed as the vector that ends at n, without the lanes that have been
      // summed already.
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

// The planes of one channel, one per sample, and the weights of their positions, which may be null.
template <class T, class A>
struct Planes {
  const T* x;
  const A* weights;
  std::int64_t samples, stride, inner;

  const T* at(std::int64_t sample, std::int64_t i) const { return x + sample * stride + i; }
  const A* weights_at(std::int64_t sample, std::int64_t i) const {
    return weights ? weights + sample * inner + i : nullptr;
  }
};

// Computes mean and M2 of a channel and returns the count. A run extends over several samples where
// planes are too small for a run of full length.
template <bool weighted, class T, class A>
double plane_moments(const Planes<T, A>& planes, double& mean, double& m2) {
  double n = mean = m2 = 0;
  std::int64_t done = 0;
  for (std::int64_t s = 0, at = 0; s < planes.samples;) {
    const std::int64_t rest = planes.inner - at;
    const std::int64_t first = weighted && n == 0 ? first_weighted(planes.weights_at(s, at), rest)
                                                  : 0;
    if (first == rest) {  // All weights are 0, so no value can serve as the shift.
      at = 0, ++s;
      continue;
    }
    const A shift = n == 0 ? A(*planes.at(s, at + first)) : static_cast<A>(mean);
    PlaneSums<T, A> run;
    for (std::int64_t left = growing(static_cast<double>(done), longest_plane);
         left > 0 && s < planes.samples;) {
      const std::int64_t length = std::min(left, planes.inner - at);
      run.template add<weighted>(planes.at(s, at), planes.weights_at(s, at), length, shift);
      left -= length, done += length, at += length;
      if (at == planes.inner) at = 0, ++s;
    }
    if (run.count <= 0) continue;
    merge_run(n, run.count, static_cast<double>(shift), run.deviation(), run.squared(), mean, m2);
    n += run.count;
  }
  return n;
}

// ---- Tiles.

// Computes the moments of a tile of rows and returns the count. Several narrow rows are processed
// as one longer row.
template <class T, class A>
double tile_of_rows(const ActivationLayout& layout, const Tile& tile, const T* x, const A* weights,
                    double* mean, double* m2) {
  const std::int64_t channels = tile.channels(), group = weights || channels != layout.channels
                                                             ? 1
                                                             : layout.rows_in_group(narrow);
  if (group == 1)
    return row_moments<T, A>({x, weights, tile.outer(), layout.channels, channels}, mean, m2);
  const std::int64_t groups = tile.outer() / group, width = group * channels;
  std::vector<double> means(static_cast<std::size_t>(width)), m2s(means.size());
  double n = row_moments<T, A>(
      {x + groups * width, nullptr, tile.outer() - groups * group, channels, channels}, mean, m2);
  const double m = row_moments<T, A>({x, nullptr, groups, width, width}, means.data(), m2s.data());
  if (m == 0) return n;
  for (std::int64_t g = 0; g < group; ++g, n += m)
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto i = static_cast<std::size_t>(g * channels + c);
      merge_run(n, m, means[i], 0, m2s[i], mean[c], m2[c]);
    }
  return n;
}

template <class T, class A>
double tile_of_planes(const ActivationLayout& layout, const Tile& tile, const T* x,
                      const A* weights, double* mean, double* m2) {
  double n = 0;
  for (std::int64_t c = 0; c < tile.channels(); ++c) {
    const Planes<T, A> planes{x + c * layout.inner, weights, tile.outer(),
                              layout.channels * layout.inner, layout.inner};
    n = weights ? plane_moments<true>(planes, mean[c], m2[c])
                : plane_moments<false>(planes, mean[c], m2[c]);
  }
  return n;
}

template <class T>
void moments_of(const ActivationLayout& layout, const T* x, const Tensor& position_weights,
                double* packet) {
  using A = Accumulate<T>;
  const Tiles tiles(layout);
  const std::vector<A> w = weight_values<A>(position_weights, layout);
  const std::int64_t C = layout.channels;
  std::vector<double> partial(static_cast<std::size_t>(tiles.chunks * 2 * C)),
      counts(static_cast<std::size_t>(tiles.chunks));
  tiles.run(layout, [&](const Tile& tile) {
    double *mean = partial.data() + 2 * tile.chunk * C + tile.first_channel, *m2 = mean + C;
    const A* weights = w.empty() ? nullptr : w.data() + tile.first * layout.inner;
    const T* from = x + (tile.first * C + tile.first_channel) * layout.inner;
    const double n = layout.is_rows ? tile_of_rows(layout, tile, from, weights, mean, m2)
                                    : tile_of_planes(layout, tile, from, weights, mean, m2);
    if (tile.first_channel == 0) counts[static_cast<std::size_t>(tile.chunk)] = n;
  });
  double n = 0, *mean = packet + packet_header_size, *m2 = mean + C;
  std::fill_n(mean, 2 * C, 0.0);
  for (std::int64_t chunk = 0; chunk < tiles.chunks; ++chunk) {
    const double m = counts[static_cast<std::size_t>(chunk)];
    if (m <= 0) continue;
    const double *means = partial.data() + 2 * chunk * C, *m2s = means + C, share = m / (n + m);
    for (std::int64_t c = 0; c < C; ++c) merge(n, share, {means[c], m2s[c]}, mean[c], m2[c]);
    n += m;
  }
  packet[0] = n;
}

}  // namespace

void batch_norm_moments(const Tensor& x, const Tensor& position_weights, const Tensor& moments) {
  const ActivationLayout layout(x);
  dispatch(RealTypes{}, x.dtype(), "batch_norm", [&]<class T>() {
    moments_of<T>(layout, x.data<T>(), position_weights, moments.data<double>());
  });
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
