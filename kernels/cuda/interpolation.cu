// This file implements interpolation on CUDA devices. As in pooling, each element of a result is
// computed once, by one thread: the gradient gathers from all outputs that read an element, so its
// bits are the same in every run.
#include "../interpolation_positions.h"
#include "../kernels.h"

#include "pooling_elements.h"

namespace tutti::kernels::cuda {
namespace {

using tutti::cuda::DeviceScope;
using tutti::cuda::Grid;
using tutti::cuda::launch;

template <class A>
struct InterpolatedDimensions {
  InterpolatedDimension<A> of[3];

  InterpolatedDimensions(const Tensor& x, const Tensor& y, const InterpolationOptions& options)
      : of{{x, y, options, 0}, {x, y, options, 1}, {x, y, options, 2}} {}
};

template <class T, int V>
__device__ void add_weighted(const SpatialView& view, std::int64_t offset, Accumulate<T> weight,
                             Accumulate<T> (&sums)[V]) {
  const AlignedVector<T, V> values = load<T, V>(view, offset);
#pragma unroll
  for (int v = 0; v < V; ++v) sums[v] += weight * convert<Accumulate<T>>(values.elements[v]);
}

template <class T, int V>
__global__ __launch_bounds__(pooling_threads) void interpolation_forward_kernel(
    InterpolatedDimensions<Accumulate<T>> dimensions, Rows rows, SpatialView x, SpatialView y) {
  using A = Accumulate<T>;
  for_each_element<V>(rows, [&](const Element& to) {
    InterpolationTaps<A> taps[3];
#pragma unroll
    for (int d = 0; d < 3; ++d) taps[d] = dimensions.of[d].taps(to.at[d]);
    A sums[V] = {};
#pragma unroll
    for (int corner = 0; corner < 8; ++corner) {
      Position p;
      A weight = 1;
      bool is_repeated = false;
#pragma unroll
      for (int d = 0; d < 3; ++d) {
        const bool is_second = (corner >> (2 - d)) % 2 == 1;
        is_repeated = is_repeated || (is_second && taps[d].second == taps[d].first);
        p[d] = static_cast<int>(is_second ? taps[d].second : taps[d].first);
        weight *= is_second ? taps[d].share : 1 - taps[d].share;
      }
      if (!is_repeated) add_weighted<T, V>(x, x.offset(to, p), weight, sums);
    }
    store_sums<T>(y, to, sums);
  });
}

template <class T, int V>
__global__ __launch_bounds__(pooling_threads) void interpolation_backward_kernel(
    InterpolatedDimensions<Accumulate<T>> dimensions, Rows rows, SpatialView dy, SpatialView dx) {
  using A = Accumulate<T>;
  for_each_element<V>(rows, [&](const Element& to) {
    Range readers[3];
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      const auto range = dimensions.of[d].outputs(to.at[d]);
      readers[d] = {static_cast<int>(range.begin), static_cast<int>(range.end)};
    }
    A sums[V] = {};
    for_each_position(readers[0], readers[1], readers[2], [&](const Position& o) {
      A weight = 1;
#pragma unroll
      for (int d = 0; d < 3; ++d) weight *= dimensions.of[d].taps(o[d]).weight_of(to.at[d]);
      add_weighted<T, V>(dy, dy.offset(to, o), weight, sums);
    });
    store_sums<T>(dx, to, sums);
  });
}

// ---- Host side.

void forward(const Tensor& x, const InterpolationOptions& options, const Tensor& y) {
  if (y.numel() == 0) return;
  const DeviceScope scope(x.device().index());
  dispatch_elements("interpolate", y, {&x, &y},
                    [&]<class T, int V>(const Rows& rows, const Grid& grid) {
                      launch("interpolate", interpolation_forward_kernel<T, V>, grid,
                             InterpolatedDimensions<Accumulate<T>>(x, y, options), rows,
                             SpatialView(x), SpatialView(y));
                    });
}

void backward(const Tensor& dy, const InterpolationOptions& options, const Tensor& dx) {
  if (dx.numel() == 0) return;
  const DeviceScope scope(dx.device().index());
  const char* op = "gradient of interpolate";
  dispatch_elements(op, dx, {&dy, &dx}, [&]<class T, int V>(const Rows& rows, const Grid& grid) {
    launch(op, interpolation_backward_kernel<T, V>, grid,
           InterpolatedDimensions<Accumulate<T>>(dx, dy, options), rows, SpatialView(dy),
           SpatialView(dx));
  });
}

}  // namespace

extern const Interpolation interpolation{.forward = forward, .backward = backward};

}  // namespace tutti::kernels::cuda
