// Pooling on CUDA devices. Outputs are gathered: each element of a result is computed once, from
// all windows it has a part in, so nothing is zeroed first, nothing is added atomically and results
// do not depend on the launch. A row of threads works along the dimension that lies densely in
// memory: channels in channels_last, several at once where they fit, else positions. Sums are taken
// in float32 (float64 for float64), row by row of a window.
#include "../pooling.h"

#include "../../core/cuda/stream.h"
#include "element.h"

#include <algorithm>

namespace tutti::kernels::cuda {
namespace {

using tutti::cuda::DeviceScope;
using tutti::cuda::Grid;
using tutti::cuda::launch;

// What one thread computes: `channel` on (V of them) at `p`.
struct Place {
  std::int64_t n, channel;
  int p[3];
};

// A tensor (N, C, D, H, W) in memory; one and two spatial dimensions are three with sizes of 1.
struct View {
  void* base = nullptr;
  std::int64_t batch = 0, channel = 0, step[3] = {};

  View() = default;
  explicit View(const Tensor& t) : base(t.raw()), batch(t.strides()[0]), channel(t.strides()[1]) {
    for (int d = 2; d < t.rank(); ++d) step[3 - t.rank() + d] = t.strides()[d];
  }
  // Of a place's sample and channel at another position, and of the place itself.
  __device__ std::int64_t at(const Place& place, const int (&p)[3]) const {
    return place.n * batch + place.channel * channel + p[0] * step[0] + p[1] * step[1] +
           p[2] * step[2];
  }
  __device__ std::int64_t at(const Place& place) const { return at(place, place.p); }
};

// A half-open range of positions.
struct Range {
  int begin, end;
};

struct Geometry {
  std::int64_t batch = 0, channels = 0;
  int in[3] = {1, 1, 1}, out[3] = {1, 1, 1};
  int kernel[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, padding[3] = {};
  bool adaptive = false, count_padding = false;

  // The input that output o of dimension d looks at.
  __device__ Range window(int d, int o) const {
    if (adaptive) {
      const std::int64_t wide = in[d];
      return {static_cast<int>(o * wide / out[d]),
              static_cast<int>(((o + 1) * wide + out[d] - 1) / out[d])};
    }
    const int origin = o * stride[d] - padding[d];
    return {max(origin, 0), min(origin + kernel[d], in[d])};
  }
  // The outputs that look at input i.
  __device__ Range covering(int d, int i) const {
    if (adaptive) {
      const std::int64_t wide = out[d];
      return {static_cast<int>(i * wide / in[d]),
              static_cast<int>(((i + 1) * wide + in[d] - 1) / in[d])};
    }
    const int last = i + padding[d], first = last - kernel[d] + 1;
    return {first <= 0 ? 0 : (first + stride[d] - 1) / stride[d],
            min(last / stride[d] + 1, out[d])};
  }
  // What the average of output o divides by.
  __device__ std::int64_t count(const int (&o)[3]) const {
    std::int64_t product = 1;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      const Range range = window(d, o[d]);
      product *= count_padding ? kernel[d] : range.end - range.begin;
    }
    return product;
  }
  // The row-major number of input position p in the window of output o.
  __device__ std::int64_t position(const int (&o)[3], const int (&p)[3]) const {
    std::int64_t number = 0;
#pragma unroll
    for (int d = 0; d < 3; ++d)
      number = number * kernel[d] + p[d] - (o[d] * stride[d] - padding[d]);
    return number;
  }
};

// How the elements of a result are given to threads: `rows` rows of `length` pieces of work. In
// channels_last a row is all channels, V at once, of all positions along w; else all positions
// along w of one channel.
struct Rows {
  std::int64_t rows, length;
  int size[3];
  bool channels_inside;
};

// The quotient, and the remainder in `i`; in 32 bits where they suffice, which is several times
// faster.
__device__ std::int64_t divide(std::int64_t i, std::int64_t by, int& remainder) {
  if (i < (std::int64_t{1} << 31) && by < (std::int64_t{1} << 31)) {
    const auto quotient = static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(by);
    remainder =
        static_cast<int>(static_cast<std::uint32_t>(i) - quotient * static_cast<std::uint32_t>(by));
    return quotient;
  }
  const std::int64_t quotient = i / by;
  remainder = static_cast<int>(i - quotient * by);
  return quotient;
}

template <int V, class Body>
__device__ void for_each_place(const Rows& r, std::int64_t channels, const Body& body) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  for (std::int64_t row = first; row < r.rows;
       row += static_cast<std::int64_t>(gridDim.x) * blockDim.y) {
    Place place;
    std::int64_t rest = divide(row, r.size[1], place.p[1]);
    rest = divide(rest, r.size[0], place.p[0]);
    int channel = 0;
    place.n = r.channels_inside ? rest : divide(rest, channels, channel);
    place.channel = channel;
    for (std::int64_t i = threadIdx.x; i < r.length; i += blockDim.x) {
      if (r.channels_inside) {
        int group = 0;
        place.p[2] = static_cast<int>(divide(i, channels / V, group));
        place.channel = static_cast<std::int64_t>(group) * V;
      } else {
        place.p[2] = static_cast<int>(i);
      }
      body(place);
    }
  }
}

template <class T, int V>
struct alignas(V * sizeof(T)) Pack {
  T elements[V];
};
template <class T, int V>
__device__ Pack<T, V> load(const View& view, std::int64_t at) {
  return *reinterpret_cast<const Pack<T, V>*>(static_cast<const T*>(view.base) + at);
}
template <class T, int V>
__device__ void store(const View& view, std::int64_t at, const Pack<T, V>& pack) {
  *reinterpret_cast<Pack<T, V>*>(static_cast<T*>(view.base) + at) = pack;
}

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T, int V>
__device__ void store_sums(const View& view, const Place& to, const Sum<T> (&sums)[V]) {
  Pack<T, V> pack;
#pragma unroll
  for (int v = 0; v < V; ++v) pack.elements[v] = convert<T>(sums[v]);
  store<T, V>(view, view.at(to), pack);
}

// Calls body(o) for every output that looks at input p.
template <class Body>
__device__ void for_covering(const Geometry& g, const int (&p)[3], const Body& body) {
  const Range d = g.covering(0, p[0]), h = g.covering(1, p[1]), w = g.covering(2, p[2]);
  int o[3];
  for (o[0] = d.begin; o[0] < d.end; ++o[0])
    for (o[1] = h.begin; o[1] < h.end; ++o[1])
      for (o[2] = w.begin; o[2] < w.end; ++o[2]) body(o);
}

constexpr int threads = 256;

// y, and unless index.base is null where in each window it was found: the first largest element,
// NaN above all others.
template <class T, int V>
__global__ __launch_bounds__(threads) void max_forward_kernel(Geometry g, Rows rows, View x, View y,
                                                              View index, bool index_is_byte) {
  for_each_place<V>(rows, g.channels, [&](const Place& to) {
    const Range wd = g.window(0, to.p[0]), wh = g.window(1, to.p[1]), ww = g.window(2, to.p[2]);
    Pack<T, V> best;
    Sum<T> largest[V];
    int where[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      largest[v] = -INFINITY;
      where[v] = -1;
      best.elements[v] = convert<T>(largest[v]);
    }
    int p[3];
    for (p[0] = wd.begin; p[0] < wd.end; ++p[0])
      for (p[1] = wh.begin; p[1] < wh.end; ++p[1])
        for (p[2] = ww.begin; p[2] < ww.end; ++p[2]) {
          const Pack<T, V> pack = load<T, V>(x, x.at(to, p));
          const int position = static_cast<int>(g.position(to.p, p));
#pragma unroll
          for (int v = 0; v < V; ++v) {
            const Sum<T> value = convert<Sum<T>>(pack.elements[v]);
            const bool better = where[v] < 0 || value > largest[v] ||
                                (value != value && largest[v] == largest[v]);
            if (better)
              largest[v] = value, where[v] = position, best.elements[v] = pack.elements[v];
          }
        }
    store<T, V>(y, y.at(to), best);
    if (!index.base) return;
    const std::int64_t at = index.at(to);
    if (index_is_byte) {
      Pack<std::uint8_t, V> bytes;
#pragma unroll
      for (int v = 0; v < V; ++v) bytes.elements[v] = static_cast<std::uint8_t>(where[v]);
      store<std::uint8_t, V>(index, at, bytes);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v)
        static_cast<std::int64_t*>(index.base)[at + v * index.channel] = where[v];
    }
  });
}

template <class T, int V>
__global__ __launch_bounds__(threads) void max_backward_kernel(Geometry g, Rows rows, View dy,
                                                               View index, View dx,
                                                               bool index_is_byte) {
  for_each_place<V>(rows, g.channels, [&](const Place& to) {
    Sum<T> sum[V] = {};
    for_covering(g, to.p, [&](const int(&o)[3]) {
      const std::int64_t mine = g.position(o, to.p), at = index.at(to, o);
      const Pack<T, V> pack = load<T, V>(dy, dy.at(to, o));
      bool taken[V];
      if (index_is_byte) {
        const Pack<std::uint8_t, V> bytes = load<std::uint8_t, V>(index, at);
#pragma unroll
        for (int v = 0; v < V; ++v) taken[v] = bytes.elements[v] == mine;
      } else {
#pragma unroll
        for (int v = 0; v < V; ++v)
          taken[v] = static_cast<const std::int64_t*>(index.base)[at + v * index.channel] == mine;
      }
#pragma unroll
      for (int v = 0; v < V; ++v)
        sum[v] += taken[v] ? convert<Sum<T>>(pack.elements[v]) : Sum<T>(0);
    });
    store_sums<T>(dx, to, sum);
  });
}

template <class T, int V>
__global__ __launch_bounds__(threads) void average_forward_kernel(Geometry g, Rows rows, View x,
                                                                  View y) {
  for_each_place<V>(rows, g.channels, [&](const Place& to) {
    const Range wd = g.window(0, to.p[0]), wh = g.window(1, to.p[1]), ww = g.window(2, to.p[2]);
    Sum<T> sum[V] = {};
    int p[3];
    for (p[0] = wd.begin; p[0] < wd.end; ++p[0])
      for (p[1] = wh.begin; p[1] < wh.end; ++p[1]) {
        Sum<T> row[V] = {};  // sums of sums: the error grows with the edge, not the area
        for (p[2] = ww.begin; p[2] < ww.end; ++p[2]) {
          const Pack<T, V> pack = load<T, V>(x, x.at(to, p));
#pragma unroll
          for (int v = 0; v < V; ++v) row[v] += convert<Sum<T>>(pack.elements[v]);
        }
#pragma unroll
        for (int v = 0; v < V; ++v) sum[v] += row[v];
      }
    const Sum<T> scale = Sum<T>(1) / Sum<T>(g.count(to.p));
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] *= scale;
    store_sums<T>(y, to, sum);
  });
}

template <class T, int V>
__global__ __launch_bounds__(threads) void average_backward_kernel(Geometry g, Rows rows, View dy,
                                                                   View dx) {
  for_each_place<V>(rows, g.channels, [&](const Place& to) {
    Sum<T> sum[V] = {};
    for_covering(g, to.p, [&](const int(&o)[3]) {
      const Sum<T> scale = Sum<T>(1) / Sum<T>(g.count(o));
      const Pack<T, V> pack = load<T, V>(dy, dy.at(to, o));
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += scale * convert<Sum<T>>(pack.elements[v]);
    });
    store_sums<T>(dx, to, sum);
  });
}

// Positions, windows and channels are counted in 32 bits; only rows of them, and addresses, take
// more.
void expect_32_bits(std::int64_t number, const char* what) {
  if (number >= (std::int64_t{1} << 31))
    fail<ShapeError>("pooling: expected {} below 2^31 on a GPU, got {}", what, number);
}

Geometry geometry(const Tensor& x, const Tensor& y) {
  for (int d = 1; d < x.rank(); ++d)
    expect_32_bits(std::max(x.shape()[d], y.shape()[d]), d == 1 ? "channels" : "a size");
  Geometry g;
  g.batch = x.shape()[0];
  g.channels = x.shape()[1];
  for (int d = 2; d < x.rank(); ++d) {
    g.in[3 - x.rank() + d] = static_cast<int>(x.shape()[d]);
    g.out[3 - x.rank() + d] = static_cast<int>(y.shape()[d]);
  }
  return g;
}

Geometry geometry(const Tensor& x, const Tensor& y, const PoolOptions& options) {
  Geometry g = geometry(x, y);
  const int skip = 3 - options.kernel.size();
  expect_32_bits(product(options.kernel, 0, options.kernel.size()), "elements of a window");
  for (int d = skip; d < 3; ++d) {
    const int i = d - skip;
    expect_32_bits(
        x.shape()[2 + i] + 2 * options.padding[i] + options.kernel[i] + options.stride[i],
        "a size with padding, kernel and stride");
    g.kernel[d] = static_cast<int>(options.kernel[d - skip]);
    g.stride[d] = static_cast<int>(options.stride[d - skip]);
    g.padding[d] = static_cast<int>(options.padding[d - skip]);
  }
  g.count_padding = options.count_include_pad;
  return g;
}

Geometry adaptive_geometry(const Tensor& x, const Tensor& y) {
  Geometry g = geometry(x, y);
  g.adaptive = true;
  return g;
}

// True where `width` neighbouring channels of every tensor (undefined ones do not count) can be
// loaded at once.
bool channels_in_packs(std::initializer_list<const Tensor*> tensors, int width) {
  for (const Tensor* t : tensors) {
    if (!t->defined()) continue;
    const std::size_t bytes = static_cast<std::size_t>(width) * size_of(t->dtype());
    if (t->strides()[1] != 1 || reinterpret_cast<std::uintptr_t>(t->raw()) % bytes != 0)
      return false;
    for (int d = 0; d < t->rank(); ++d)
      if (t->shape()[d] > 1 && (d == 1 ? t->shape()[d] : t->strides()[d]) % width != 0)
        return false;
  }
  return true;
}

// Calls body.operator()<T, V>(rows, grid) for the elements of `to`.
template <class Body>
void for_each_element(const char* op, const Tensor& to,
                      std::initializer_list<const Tensor*> tensors, const Body& body) {
  dispatch(TrainTypes{}, to.dtype(), op, [&]<class Host>() {
    using T = DeviceType<Host>;
    constexpr int full = 16 / static_cast<int>(sizeof(T));
    const Geometry g = geometry(to, to);
    const bool inside = to.strides()[1] == 1 && g.channels > 1,
               packed = inside && channels_in_packs(tensors, full);
    const std::int64_t channels = inside ? packed ? g.channels / full : g.channels : 1;
    const Rows rows{g.batch * (inside ? 1 : g.channels) * g.in[0] * g.in[1],
                    g.in[2] * channels,
                    {g.in[0], g.in[1], g.in[2]},
                    inside};
    unsigned along = 32;
    while (along < threads && along < rows.length) along *= 2;
    const std::int64_t per_block = threads / along,
                       blocks = (rows.rows + per_block - 1) / per_block;
    const Grid grid{.blocks = static_cast<unsigned>(std::min<std::int64_t>(blocks, 1 << 20)),
                    .threads = dim3(along, static_cast<unsigned>(per_block))};
    if (packed) body.template operator()<T, full>(rows, grid);
    else body.template operator()<T, 1>(rows, grid);
  });
}

void max_forward(const Tensor& x, const PoolOptions& options, const Tensor& y,
                 const Tensor& index) {
  if (y.numel() == 0) return;
  const DeviceScope scope(x.device().index());
  const Geometry g = geometry(x, y, options);
  const bool bytes = index.defined() && index.dtype() == uint8;
  const View to_index = index.defined() ? View(index) : View();
  for_each_element("max pooling", y, {&x, &y, bytes ? &index : &y},
                   [&]<class T, int V>(const Rows& rows, const Grid& grid) {
                     launch("max pooling", max_forward_kernel<T, V>, grid, g, rows, View(x),
                            View(y), to_index, bytes);
                   });
}

void max_backward(const Tensor& dy, const Tensor& index, const PoolOptions& options,
                  const Tensor& dx) {
  if (dx.numel() == 0) return;
  const DeviceScope scope(dx.device().index());
  const Geometry g = geometry(dx, dy, options);
  const bool bytes = index.dtype() == uint8;
  for_each_element("gradient of max pooling", dx, {&dy, bytes ? &index : &dy, &dx},
                   [&]<class T, int V>(const Rows& rows, const Grid& grid) {
                     launch("gradient of max pooling", max_backward_kernel<T, V>, grid, g, rows,
                            View(dy), View(index), View(dx), bytes);
                   });
}

void average(const Geometry& g, const Tensor& x, const Tensor& y) {
  if (y.numel() == 0) return;
  const DeviceScope scope(x.device().index());
  for_each_element(
      "average pooling", y, {&x, &y}, [&]<class T, int V>(const Rows& rows, const Grid& grid) {
        launch("average pooling", average_forward_kernel<T, V>, grid, g, rows, View(x), View(y));
      });
}

void average_gradient(const Geometry& g, const Tensor& dy, const Tensor& dx) {
  if (dx.numel() == 0) return;
  const DeviceScope scope(dx.device().index());
  const char* op = "gradient of average pooling";
  for_each_element(op, dx, {&dy, &dx}, [&]<class T, int V>(const Rows& rows, const Grid& grid) {
    launch(op, average_backward_kernel<T, V>, grid, g, rows, View(dy), View(dx));
  });
}

void average_forward(const Tensor& x, const PoolOptions& options, const Tensor& y) {
  average(geometry(x, y, options), x, y);
}
void average_backward(const Tensor& dy, const PoolOptions& options, const Tensor& dx) {
  average_gradient(geometry(dx, dy, options), dy, dx);
}
void adaptive_average_forward(const Tensor& x, const Tensor& y) {
  average(adaptive_geometry(x, y), x, y);
}
void adaptive_average_backward(const Tensor& dy, const Tensor& dx) {
  average_gradient(adaptive_geometry(dx, dy), dy, dx);
}

}  // namespace

const Pooling& pooling() {
  static constexpr Pooling table{max_forward,
                                 max_backward,
                                 average_forward,
                                 average_backward,
                                 adaptive_average_forward,
                                 adaptive_average_backward};
  return table;
}

}  // namespace tutti::kernels::cuda
