// Interpolation on the CPU. A row of the result is computed in two steps: the rows that it depends
// on are added with their weights, and then the columns. The gradient gathers in the same way, so
// that its bits depend neither on threads nor on time.
#include "../interpolation_positions.h"
#include "../kernels.h"

#include "../../core/parallel.h"
#include "spatial.h"
#include "vector.h"

#include <algorithm>
#include <span>
#include <vector>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

// An element that a sum reads, and its factor.
template <class A>
struct WeightedPosition {
  std::int64_t position;
  A weight;
};

// For each position of a result in one dimension, the positions that it is the weighted sum of.
template <class A>
struct WeightedSums {
  std::vector<std::size_t> begin{0};
  std::vector<WeightedPosition<A>> terms;

  void add(std::int64_t position, A weight) { terms.push_back({position, weight}); }
  void finish_position() { begin.push_back(terms.size()); }
  std::span<const WeightedPosition<A>> of(std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    return std::span(terms).subspan(begin[at], begin[at + 1] - begin[at]);
  }
};

template <class A>
WeightedSums<A> sums_of_inputs(const InterpolatedDimension<A>& dimension) {
  WeightedSums<A> sums;
  for (std::int64_t o = 0; o < dimension.out; ++o, sums.finish_position()) {
    const InterpolationTaps<A> taps = dimension.taps(o);
    sums.add(taps.first, taps.weight_of(taps.first));
    if (taps.second != taps.first) sums.add(taps.second, taps.share);
  }
  return sums;
}

template <class A>
WeightedSums<A> sums_of_outputs(const InterpolatedDimension<A>& dimension) {
  WeightedSums<A> sums;
  for (std::int64_t i = 0; i < dimension.in; ++i, sums.finish_position()) {
    const PositionRange<std::int64_t> range = dimension.outputs(i);
    for (std::int64_t o = range.begin; o < range.end; ++o)
      sums.add(o, dimension.taps(o).weight_of(i));
  }
  return sums;
}

// Writes the weighted sum of rows of `length` elements.
template <class T, class A>
void add_rows_of(const T* from, std::int64_t length, std::span<const WeightedPosition<A>> rows,
                 A* sum) {
  for_lanes<T>(length, [&](std::int64_t i, auto lanes) {
    typename decltype(lanes)::V total{};
    for (const auto& [row, weight] : rows) total += weight * lanes.load(from + row * length + i);
    lanes.put(sum + i, total);
  });
}

// Writes the weighted sums of the columns of a row, which have `inner` elements each.
template <class T, class A>
void add_columns(const A* row, std::int64_t inner, std::int64_t width,
                 const WeightedSums<A>& columns, T* out) {
  for (std::int64_t w = 0; w < width; ++w) {
    const auto terms = columns.of(w);
    if (inner == 1) {
      A total{};
      for (const auto& [column, weight] : terms) total += weight * row[column];
      out[w] = T(total);
      continue;
    }
    for_lanes<T>(inner, [&](std::int64_t c, auto lanes) {
      typename decltype(lanes)::V total{};
      for (const auto& [column, weight] : terms)
        total += weight * lanes.get(row + column * inner + c);
      lanes.store(out + w * inner + c, total);
    });
  }
}

// Computes `out` from `in`, both contiguous or both channels_last, with the sums that
// sums_of(dimension) gives in each dimension.
template <class T, class Dimensions, class SumsOf>
void interpolate(const Tensor& in, const Tensor& out, const Dimensions& dimension,
                 const SumsOf& sums_of) {
  using A = Accumulate<T>;
  const WeightedSums<A> of[3] = {sums_of(dimension(0)), sums_of(dimension(1)),
                                 sums_of(dimension(2))};
  const SpatialDims from = spatial_dims(in.shape(), 2, 1), to = spatial_dims(out.shape(), 2, 1);
  const std::int64_t inner = in.is_contiguous() && out.is_contiguous() ? 1 : out.size(1),
                     in_row = from[2] * inner, rows = out.numel() / (to[2] * inner),
                     cost = (in_row * static_cast<std::int64_t>(of[1].terms.size()) / to[1]) +
                            to[2] * inner;
  const T* source = in.data<T>();
  T* target = out.data<T>();
  parallel_for(rows, std::max<std::int64_t>(1, 16384 / cost), [&](auto begin, auto end) {
    std::vector<A> sum(static_cast<std::size_t>(in_row));
    std::vector<WeightedPosition<A>> terms;
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t volume = row / to[1] / to[0];
      terms.clear();
      for (const auto& [d, of_depth] : of[0].of(row / to[1] % to[0]))
        for (const auto& [h, of_height] : of[1].of(row % to[1]))
          terms.push_back({(volume * from[0] + d) * from[1] + h, of_depth * of_height});
      add_rows_of<T, A>(source, in_row, terms, sum.data());
      add_columns<T, A>(sum.data(), inner, to[2], of[2], target + row * to[2] * inner);
    }
  });
}

void interpolation_forward(const Tensor& x, const InterpolationOptions& options, const Tensor& y) {
  if (y.numel() == 0) return;
  dispatch(RealTypes{}, x.dtype(), "interpolate", [&]<class T>() {
    using A = Accumulate<T>;
    interpolate<T>(
        x, y, [&](int d) { return InterpolatedDimension<A>(x, y, options, d); }, sums_of_inputs<A>);
  });
}

void interpolation_backward(const Tensor& dy, const InterpolationOptions& options,
                            const Tensor& dx) {
  if (dx.numel() == 0) return;
  dispatch(RealTypes{}, dy.dtype(), "interpolate", [&]<class T>() {
    using A = Accumulate<T>;
    interpolate<T>(
        dy, dx, [&](int d) { return InterpolatedDimension<A>(dx, dy, options, d); },
        sums_of_outputs<A>);
  });
}

}  // namespace

extern const Interpolation interpolation{.forward = interpolation_forward,
                                         .backward = interpolation_backward};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
