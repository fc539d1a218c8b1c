// This file implements pooling on CUDA devices. Each element of a result is computed once, from all
// windows that contain it, so that no memory is zeroed first, no atomics are needed and results do
// not depend on the launch. An average adds up to `values_in_float` values of a row of its window
// in float32, and these sums in float64.
#include "../kernels.h"

#include "pooling_elements.h"

namespace tutti::kernels::cuda {
namespace {

using tutti::cuda::DeviceScope;
using tutti::cuda::Grid;
using tutti::cuda::launch;

constexpr int values_in_float = 256;

struct PoolWindows {
  PoolDimension<int> dimensions[3];
  bool adaptive = false, count_padding = false;

  // The input that output o of dimension d looks at.
  __device__ Range window(int d, int o) const {
    const PoolDimension<int>& of = dimensions[d];
    return adaptive ? adaptive_window(o, of.in, of.out) : of.window(o);
  }
  // The outputs of dimension d that look at input i.
  __device__ Range outputs(int d, int i) const {
    const PoolDimension<int>& of = dimensions[d];
    return adaptive ? adaptive_window(i, of.out, of.in) : of.outputs(i);
  }
  // Returns the number by which the average of output o is divided.
  __device__ std::int64_t divisor(const Position& o) const {
    std::int64_t product = 1;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      const Range range = window(d, o[d]);
      product *= adaptive ? range.end - range.begin : dimensions[d].divisor(o[d], count_padding);
    }
    return product;
  }
  // Returns the row-major index of input position p in the window of output o.
  __device__ std::int64_t position_in_window(const Position& o, const Position& p) const {
    std::int64_t number = 0;
#pragma unroll
    for (int d = 0; d < 3; ++d)
      number = number * dimensions[d].kernel + p[d] - dimensions[d].origin(o[d]);
    return number;
  }
};

// Calls body(o) for every output that looks at input p.
template <class Body>
__device__ void for_each_output(const PoolWindows& windows, const Position& p, const Body& body) {
  for_each_position(windows.outputs(0, p[0]), windows.outputs(1, p[1]), windows.outputs(2, p[2]),
                    body);
}

// The index tensor of max pooling, uint8 or int64; `base` is null if it is not wanted.
struct IndexView {
  SpatialView view;
  bool is_byte = false;

  IndexView() = default;
  explicit IndexView(const Tensor& index) {
    if (!index.defined()) return;
    view = SpatialView(index);
    is_byte = index.dtype() == uint8;
  }
  template <int V>
  __device__ void store_positions(const Element& e, const int (&positions)[V]) const {
    if (!view.base) return;
    const std::int64_t offset = view.offset(e);
    if (is_byte) {
      AlignedVector<std::uint8_t, V> bytes;
#pragma unroll
      for (int v = 0; v < V; ++v) bytes.elements[v] = static_cast<std::uint8_t>(positions[v]);
      store<std::uint8_t, V>(view, offset, bytes);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v)
        static_cast<std::int64_t*>(view.base)[offset + v * view.channel_stride] = positions[v];
    }
  }
  // Returns which of the V channels of output o have their maximum at `position`.
  template <int V>
  __device__ void compare(const Element& e, const Position& o, std::int64_t position,
                          bool (&equal)[V]) const {
    const std::int64_t offset = view.offset(e, o);
    if (is_byte) {
      const auto bytes = load<std::uint8_t, V>(view, offset);
#pragma unroll
      for (int v = 0; v < V; ++v) equal[v] = bytes.elements[v] == position;
    } else {
      const auto* positions = static_cast<const std::int64_t*>(view.base);
#pragma unroll
      for (int v = 0; v < V; ++v)
        equal[v] = positions[offset + v * view.channel_stride] == position;
    }
  }
};

// Computes the maximum of each window and the index of its first occurrence. NaN counts as larger
// than all other values.
template <class T, int V>
__global__ __launch_bounds__(pooling_threads) void max_forward_kernel(PoolWindows windows,
                                                                      Rows rows, SpatialView x,
                                                                      SpatialView y,
                                                                      IndexView index) {
  using A = Accumulate<T>;
  for_each_element<V>(rows, [&](const Element& to) {
    AlignedVector<T, V> best;
    A largest[V];
    int where[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      largest[v] = -INFINITY;
      where[v] = -1;
      best.elements[v] = convert<T>(largest[v]);
    }
    for_each_position(windows.window(0, to.at[0]), windows.window(1, to.at[1]),
                      windows.window(2, to.at[2]), [&](const Position& p) {
                        const AlignedVector<T, V> values = load<T, V>(x, x.offset(to, p));
                        const int position = static_cast<int>(windows.position_in_window(to.at, p));
#pragma unroll
                        for (int v = 0; v < V; ++v) {
                          const A value = convert<A>(values.elements[v]);
                          if (where[v] < 0 || is_larger(value, largest[v]))
                            largest[v] = value, where[v] = position,
                            best.elements[v] = values.elements[v];
                        }
                      });
    store<T, V>(y, y.offset(to), best);
    index.store_positions(to, where);
  });
}

template <class T, int V>
__global__ __launch_bounds__(pooling_threads) void max_backward_kernel(PoolWindows windows,
                                                                       Rows rows, SpatialView dy,
                                                                       IndexView index,
                                                                       SpatialView dx) {
  using A = Accumulate<T>;
  for_each_element<V>(rows, [&](const Element& to) {
    A sum[V] = {};
    for_each_output(windows, to.at, [&](const Position& o) {
      const AlignedVector<T, V> gradients = load<T, V>(dy, dy.offset(to, o));
      bool taken[V];
      index.compare(to, o, windows.position_in_window(o, to.at), taken);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += taken[v] ? convert<A>(gradients.elements[v]) : A(0);
    });
    store_sums<T>(dx, to, sum);
  });
}

template <class T, int V>
__global__ __launch_bounds__(pooling_threads) void average_forward_kernel(PoolWindows windows,
                                                                          Rows rows, SpatialView x,
                                                                          SpatialView y) {
  using A = Accumulate<T>;
  for_each_element<V>(rows, [&](const Element& to) {
    const Range d = windows.window(0, to.at[0]), h = windows.window(1, to.at[1]),
                w = windows.window(2, to.at[2]);
    double sum[V] = {};
    Position p;
    for (p[0] = d.begin; p[0] < d.end; ++p[0])
      for (p[1] = h.begin; p[1] < h.end; ++p[1])
        for (p[2] = w.begin; p[2] < w.end;) {
          const int end = w.end - p[2] > values_in_float ? p[2] + values_in_float : w.end;
          A part[V] = {};
          for (; p[2] < end; ++p[2]) {
            const AlignedVector<T, V> values = load<T, V>(x, x.offset(to, p));
#pragma unroll
            for (int v = 0; v < V; ++v) part[v] += convert<A>(values.elements[v]);
          }
#pragma unroll
          for (int v = 0; v < V; ++v) sum[v] += static_cast<double>(part[v]);
        }
    const double scale = 1 / static_cast<double>(windows.divisor(to.at));
    A average[V];
#pragma unroll
    for (int v = 0; v < V; ++v) average[v] = static_cast<A>(sum[v] * scale);
    store_sums<T>(y, to, average);
  });
}

template <class T, int V>
__global__ __launch_bounds__(pooling_threads) void average_backward_kernel(PoolWindows windows,
                                                                           Rows rows,
                                                                           SpatialView dy,
                                                                           SpatialView dx) {
  using A = Accumulate<T>;
  for_each_element<V>(rows, [&](const Element& to) {
    A sum[V] = {};
    for_each_output(windows, to.at, [&](const Position& o) {
      const A scale = A(1) / A(windows.divisor(o));
      const AlignedVector<T, V> gradients = load<T, V>(dy, dy.offset(to, o));
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += scale * convert<A>(gradients.elements[v]);
    });
    store_sums<T>(dx, to, sum);
  });
}

// ---- Host side.

// Throws if a number does not fit into 32 bits. Kernels count positions, windows and channels in 32
// bits, and only rows and offsets in 64.
void expect_32_bits(std::int64_t number, const char* what) {
  if (number >= (std::int64_t{1} << 31))
    fail<ShapeError>("pooling: expected {} below 2^31 on a GPU, got {}", what, number);
}

PoolWindows windows_of(const Tensor& x, const Tensor& y, const PoolOptions& options) {
  for (int d = 1; d < x.rank(); ++d)
    expect_32_bits(std::max(x.shape()[d], y.shape()[d]), d == 1 ? "channels" : "a size");
  const int given = options.kernel.size();
  PoolWindows windows;
  windows.adaptive = given == 0;
  windows.count_padding = options.count_include_pad;
  for (int d = 2; d < x.rank(); ++d) {
    PoolDimension<int>& dimension = windows.dimensions[3 - x.rank() + d];
    dimension.in = static_cast<int>(x.shape()[d]);
    dimension.out = static_cast<int>(y.shape()[d]);
  }
  expect_32_bits(product(options.kernel, 0, given), "elements of a window");
  for (int i = 0; i < given; ++i) {
    expect_32_bits(
        x.shape()[2 + i] + 2 * options.padding[i] + options.kernel[i] + options.stride[i],
        "a size with padding, kernel and stride");
    PoolDimension<int>& dimension = windows.dimensions[3 - given + i];
    dimension.kernel = static_cast<int>(options.kernel[i]);
    dimension.stride = static_cast<int>(options.stride[i]);
    dimension.padding = static_cast<int>(options.padding[i]);
  }
  return windows;
}

void max_forward(const Tensor& x, const PoolOptions& options, const Tensor& y,
                 const Tensor& index) {
  if (y.numel() == 0) return;
  const DeviceScope scope(x.device().index());
  const PoolWindows windows = windows_of(x, y, options);
  const IndexView to_index(index);
  dispatch_elements("max pooling", y, {&x, &y, to_index.is_byte ? &index : &y},
                    [&]<class T, int V>(const Rows& rows, const Grid& grid) {
                      launch("max pooling", max_forward_kernel<T, V>, grid, windows, rows,
                             SpatialView(x), SpatialView(y), to_index);
                    });
}

void max_backward(const Tensor& dy, const Tensor& index, const PoolOptions& options,
                  const Tensor& dx) {
  if (dx.numel() == 0) return;
  const DeviceScope scope(dx.device().index());
  const PoolWindows windows = windows_of(dx, dy, options);
  const IndexView from_index(index);
  const char* op = "gradient of max pooling";
  dispatch_elements(op, dx, {&dy, from_index.is_byte ? &index : &dy, &dx},
                    [&]<class T, int V>(const Rows& rows, const Grid& grid) {
                      launch(op, max_backward_kernel<T, V>, grid, windows, rows, SpatialView(dy),
                             from_index, SpatialView(dx));
                    });
}

void average_forward(const Tensor& x, const PoolOptions& options, const Tensor& y) {
  if (y.numel() == 0) return;
  const DeviceScope scope(x.device().index());
  const PoolWindows windows = windows_of(x, y, options);
  const char* op = "average pooling";
  dispatch_elements(op, y, {&x, &y}, [&]<class T, int V>(const Rows& rows, const Grid& grid) {
    launch(op, average_forward_kernel<T, V>, grid, windows, rows, SpatialView(x), SpatialView(y));
  });
}

void average_backward(const Tensor& dy, const PoolOptions& options, const Tensor& dx) {
  if (dx.numel() == 0) return;
  const DeviceScope scope(dx.device().index());
  const PoolWindows windows = windows_of(dx, dy, options);
  const char* op = "gradient of average pooling";
  dispatch_elements(op, dx, {&dy, &dx}, [&]<class T, int V>(const Rows& rows, const Grid& grid) {
    launch(op, average_backward_kernel<T, V>, grid, windows, rows, SpatialView(dy),
           SpatialView(dx));
  });
}

}  // namespace

extern const Pooling pooling{.max_forward = max_forward,
                             .max_backward = max_backward,
                             .average_forward = average_forward,
                             .average_backward = average_backward};

}  // namespace tutti::kernels::cuda
