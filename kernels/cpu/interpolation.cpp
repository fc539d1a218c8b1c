// Interpolation on the CPU. The forward interpolates the columns of each row of the input once and
// adds such rows with their weights, because a row of the input serves several rows of the result.
// The gradient gathers in the opposite order: it adds the rows that an element depends on, then
// the columns. So its bits depend neither on threads nor on time.
#include "../interpolation_positions.h"
#include "../kernels.h"

#include "../../core/parallel.h"
#include "spatial.h"
#include "vector.h"

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

// For each position of a result in one dimension, the neighbouring elements that it is the weighted
// sum of.
template <class A>
struct WeightedSums {
  std::vector<std::int64_t> first;  // the element that each sum begins with
  std::vector<std::size_t> begin{0};
  std::vector<A> weights;

  std::span<const A> of(std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    return std::span(weights).subspan(begin[at], begin[at + 1] - begin[at]);
  }
  std::int64_t first_of(std::int64_t i) const { return first[static_cast<std::size_t>(i)]; }
  std::int64_t count() const { return static_cast<std::int64_t>(first.size()); }
};

template <class A>
WeightedSums<A> sums_of_inputs(const InterpolatedDimension<A>& dimension) {
  WeightedSums<A> sums;
  for (std::int64_t o = 0; o < dimension.out; ++o) {
    const InterpolationTaps<A> taps = dimension.taps(o);
    sums.first.push_back(taps.first);
    sums.weights.push_back(taps.weight_of(taps.first));
    if (taps.second != taps.first) sums.weights.push_back(taps.share);
    sums.begin.push_back(sums.weights.size());
  }
  return sums;
}

template <class A>
WeightedSums<A> sums_of_outputs(const InterpolatedDimension<A>& dimension) {
  WeightedSums<A> sums;
  for (std::int64_t i = 0; i < dimension.in; ++i) {
    const PositionRange<std::int64_t> range = dimension.outputs(i);
    sums.first.push_back(range.begin);
    for (std::int64_t o = range.begin; o < range.end; ++o)
      sums.weights.push_back(dimension.taps(o).weight_of(i));
    sums.begin.push_back(sums.weights.size());
  }
  return sums;
}

// Loads and stores elements of a tensor, or sums, with the lanes of for_lanes().
[[gnu::always_inline]] inline auto read(auto lanes, const auto* from) {
  if constexpr (requires { lanes.get(from); }) return lanes.get(from);
  else return lanes.load(from);
}
[[gnu::always_inline]] inline void write(auto lanes, auto* to, auto value) {
  if constexpr (requires { lanes.put(to, value); }) lanes.put(to, value);
  else lanes.store(to, value);
}

template <class From, class A>
struct WeightedRow {
  const From* elements;
  A weight;
};

// Writes the weighted sum of rows of `length` elements.
template <class T, class From, class To>
void add_rows(const std::vector<WeightedRow<From, Accumulate<T>>>& rows, std::int64_t length,
              To* out) {
  for_lanes<T>(length, [&](std::int64_t i, auto lanes) {
    typename decltype(lanes)::V total{};
    for (const auto& [elements, weight] : rows) total += weight * read(lanes, elements + i);
    write(lanes, out + i, total);
  });
}

// Writes the weighted sums of the columns of a row, which have `inner` elements each.
template <class T, class From, class To>
void add_columns(const From* row, std::int64_t inner, const WeightedSums<Accumulate<T>>& columns,
                 To* out) {
  using A = Accumulate<T>;
  for (std::int64_t w = 0; w < columns.count(); ++w) {
    const From* const first = row + columns.first_of(w) * inner;
    const std::span<const A> weights = columns.of(w);
    if (inner == 1) {
      A total{};
#pragma omp simd reduction(+ : total)
      for (std::size_t k = 0; k < weights.size(); ++k) total += weights[k] * A(first[k]);
      out[w] = To(total);
      continue;
    }
    for_lanes<T>(inner, [&](std::int64_t c, auto lanes) {
      typename decltype(lanes)::V total{};
      const From* column = first + c;
      for (const A weight : weights) {
        total += weight * read(lanes, column);
        column += inner;
      }
      write(lanes, out + w * inner + c, total);
    });
  }
}

// Where the rows and columns of a result are in memory, and the sums that they are.
template <class T>
struct Pass {
  using A = Accumulate<T>;
  WeightedSums<A> depth, height, width;
  SpatialDims from, to;
  std::int64_t inner, in_row, out_row;  // the elements of a position and of a row
  std::int64_t rows;                    // of the result
  const T* source;
  T* target;

  // The tensors are both contiguous or both channels_last; sums_of(d) gives the sums of dimension
  // d.
  Pass(const Tensor& in, const Tensor& out, const auto& sums_of)
      : depth(sums_of(0)),
        height(sums_of(1)),
        width(sums_of(2)),
        from(spatial_dims(in.shape(), 2, 1)),
        to(spatial_dims(out.shape(), 2, 1)),
        inner(in.is_contiguous() && out.is_contiguous() ? 1 : out.size(1)),
        in_row(from[2] * inner),
        out_row(to[2] * inner),
        rows(out.numel() / out_row),
        source(in.data<T>()),
        target(out.data<T>()) {}

  // Calls body(begin, end) for ranges of the result's rows, from several threads.
  void for_each_range(const auto& body) const {
    const std::int64_t terms = static_cast<std::int64_t>(height.weights.size()) / to[1],
                       cost = in_row * terms + out_row;
    parallel_for(rows, 16384 / cost, body);
  }
  // Calls body(slot, row, weight) for the rows of the source that a row of the result is the sum
  // of. Slots from 0 to 3 tell neighbouring rows apart.
  void for_each_source(std::int64_t row, const auto& body) const {
    const std::int64_t volume = row / to[1] / to[0], d = row / to[1] % to[0], h = row % to[1];
    std::int64_t at_depth = depth.first_of(d);
    for (const A of_depth : depth.of(d)) {
      std::int64_t at = height.first_of(h);
      for (const A of_height : height.of(h)) {
        body(static_cast<std::size_t>(at_depth % 2 * 2 + at % 2),
             source + ((volume * from[0] + at_depth) * from[1] + at) * in_row,
             of_depth * of_height);
        ++at;
      }
      ++at_depth;
    }
  }
};

// Adds rows whose columns are interpolated, each of which serves several rows of the result.
template <class T>
void columns_first(const Pass<T>& pass) {
  using A = Accumulate<T>;
  pass.for_each_range([&](std::int64_t begin, std::int64_t end) {
    std::array<const T*, 4> held{};  // the row in each buffer
    std::array<std::vector<A>, 4> buffers;
    std::vector<WeightedRow<A, A>> rows;
    for (std::int64_t row = begin; row < end; ++row) {
      rows.clear();
      pass.for_each_source(row, [&](std::size_t slot, const T* from, A weight) {
        buffers[slot].resize(static_cast<std::size_t>(pass.out_row));
        if (std::exchange(held[slot], from) != from)
          add_columns<T>(from, pass.inner, pass.width, buffers[slot].data());
        rows.push_back({buffers[slot].data(), weight});
      });
      add_rows<T>(rows, pass.out_row, pass.target + row * pass.out_row);
    }
  });
}

// Interpolates the columns of the sum of rows.
template <class T>
void rows_first(const Pass<T>& pass) {
  using A = Accumulate<T>;
  pass.for_each_range([&](std::int64_t begin, std::int64_t end) {
    std::vector<A> sum(static_cast<std::size_t>(pass.in_row));
    std::vector<WeightedRow<T, A>> rows;
    for (std::int64_t row = begin; row < end; ++row) {
      rows.clear();
      pass.for_each_source(row, [&](std::size_t, const T* from, A weight) {
        rows.push_back({from, weight});
      });
      add_rows<T>(rows, pass.in_row, sum.data());
      add_columns<T>(sum.data(), pass.inner, pass.width, pass.target + row * pass.out_row);
    }
  });
}

void interpolation_forward(const Tensor& x, const InterpolationOptions& options, const Tensor& y) {
  if (y.numel() == 0) return;
  dispatch(RealTypes{}, x.dtype(), "interpolate", [&]<class T>() {
    using A = Accumulate<T>;
    columns_first(Pass<T>(
        x, y, [&](int d) { return sums_of_inputs(InterpolatedDimension<A>(x, y, options, d)); }));
  });
}

void interpolation_backward(const Tensor& dy, const InterpolationOptions& options,
                            const Tensor& dx) {
  if (dx.numel() == 0) return;
  dispatch(RealTypes{}, dy.dtype(), "interpolate", [&]<class T>() {
    using A = Accumulate<T>;
    rows_first(Pass<T>(dy, dx, [&](int d) {
      return sums_of_outputs(InterpolatedDimension<A>(dx, dy, options, d));
    }));
  });
}

}  // namespace

extern const Interpolation interpolation{.forward = interpolation_forward,
                                         .backward = interpolation_backward};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
