// The inner loops run over a tile of channels held in registers; in channels_last these are
// adjacent in memory.
#include "pooling_loops.h"

#include "../../core/parallel.h"
#include "../pooling_windows.h"
#include "../reduce_functions.h"
#include "spatial.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL::pooling_loops {
namespace {

// Calls body(position) for the positions of three ranges, in row-major order.
template <class Body>
void for_each_position(const PositionRange<std::int64_t>& d, const PositionRange<std::int64_t>& h,
                       const PositionRange<std::int64_t>& w, const Body& body) {
  SpatialDims p;
  for (p[0] = d.begin; p[0] < d.end; ++p[0])
    for (p[1] = h.begin; p[1] < h.end; ++p[1])
      for (p[2] = w.begin; p[2] < w.end; ++p[2]) body(p);
}

struct Window {
  PositionRange<std::int64_t> range;
  std::int64_t origin;   // The start of the window, which may lie in the padding.
  std::int64_t divisor;  // The number by which the average of the window is divided.
};

// The windows of every output position, for each spatial dimension, and for every input position
// the outputs whose windows contain it.
struct Windows {
  std::array<std::vector<Window>, 3> windows;
  std::array<std::vector<PositionRange<std::int64_t>>, 3> outputs;

  const Window& at(std::size_t d, std::int64_t out) const {
    return windows[d][static_cast<std::size_t>(out)];
  }
  const PositionRange<std::int64_t>& outputs_of(std::size_t d, std::int64_t in) const {
    return outputs[d][static_cast<std::size_t>(in)];
  }
  /// Calls body(in) for the input positions in the window of `out`.
  template <class Body>
  void for_each_input(const SpatialDims& out, const Body& body) const {
    for_each_position(at(0, out[0]).range, at(1, out[1]).range, at(2, out[2]).range, body);
  }
  /// Calls body(out) for the outputs whose windows contain `in`.
  template <class Body>
  void for_each_output(const SpatialDims& in, const Body& body) const {
    for_each_position(outputs_of(0, in[0]), outputs_of(1, in[1]), outputs_of(2, in[2]), body);
  }
  SpatialDims origin(const SpatialDims& out) const {
    return {at(0, out[0]).origin, at(1, out[1]).origin, at(2, out[2]).origin};
  }
  std::int64_t divisor(const SpatialDims& out) const {
    return at(0, out[0]).divisor * at(1, out[1]).divisor * at(2, out[2]).divisor;
  }
};

Windows pool_windows(const Tensor& x, const Tensor& y, const PoolOptions& options) {
  const SpatialDims in = spatial_dims(x.shape(), 2, 1), out = spatial_dims(y.shape(), 2, 1),
                    kernel = spatial_dims(options.kernel, 0, 1),
                    stride = spatial_dims(options.stride, 0, 1),
                    padding = spatial_dims(options.padding, 0, 0);
  Windows result;
  for (std::size_t d = 0; d < 3; ++d) {
    const PoolDimension<std::int64_t> dimension{in[d], out[d], kernel[d], stride[d], padding[d]};
    for (std::int64_t o = 0; o < out[d]; ++o) {
      result.windows[d].push_back({dimension.window(o), dimension.origin(o),
                                   dimension.divisor(o, options.count_include_pad)});
    }
    for (std::int64_t i = 0; i < in[d]; ++i) result.outputs[d].push_back(dimension.outputs(i));
  }
  return result;
}

Windows adaptive_windows(const Tensor& x, const Tensor& y) {
  const SpatialDims in = spatial_dims(x.shape(), 2, 1), out = spatial_dims(y.shape(), 2, 1);
  Windows result;
  for (std::size_t d = 0; d < 3; ++d) {
    for (std::int64_t o = 0; o < out[d]; ++o) {
      const PositionRange<std::int64_t> range = adaptive_window(o, in[d], out[d]);
      result.windows[d].push_back({range, range.begin, range.end - range.begin});
    }
    for (std::int64_t i = 0; i < in[d]; ++i)
      result.outputs[d].push_back(adaptive_window(i, out[d], in[d]));
  }
  return result;
}

constexpr std::int64_t tile_size = 32;  // In channels: two AVX-512 registers of float.

// Some channels of a row of positions along W: channels [first, first + count) of sample n.
struct Tile {
  std::int64_t n, first, count;
  std::int64_t d, h, width;

  template <class T>
  SpatialView<T> view(const Tensor& t) const {
    return {t, n, first};
  }
  bool is_full() const { return count == tile_size; }
};

// Calls body(const Tile&) for tiles that cover `t`, from several threads.
template <class Body>
void for_each_tile(const Tensor& t, const Body& body) {
  const SpatialDims size = spatial_dims(t.shape(), 2, 1);
  const std::int64_t channels = t.shape()[1], tiles = (channels + tile_size - 1) / tile_size;
  const std::int64_t rows = t.shape()[0] * tiles * size[0] * size[1];
  parallel_for(rows, std::max<std::int64_t>(1, 512 / std::max<std::int64_t>(size[2], 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t h = i % size[1], d = i / size[1] % size[0];
                   const std::int64_t tile = i / (size[1] * size[0]) % tiles,
                                      n = i / (size[1] * size[0] * tiles);
                   const std::int64_t first = tile * tile_size;
                   body(Tile{n, first, std::min(tile_size, channels - first), d, h, size[2]});
                 }
               });
}

// Loops over the channels of a tile. Full tiles of neighbouring channels have constant bounds and
// strides, so that their loops vectorise.
template <bool full, class Body>
inline void for_each_channel(std::int64_t count, const Body& body) {
  const std::int64_t n = full ? tile_size : count;
  for (std::int64_t c = 0; c < n; ++c) body(c);
}

template <class Body>
void dispatch_full(bool full, const Body& body) {
  full ? body.template operator()<true>() : body.template operator()<false>();
}

// Returns the row-major index of input position `in` in a window that starts at `origin`.
std::int64_t position_in_window(const SpatialDims& in, const SpatialDims& origin,
                                const SpatialDims& kernel) {
  std::int64_t position = 0;
  for (std::size_t d = 0; d < 3; ++d) position = position * kernel[d] + in[d] - origin[d];
  return position;
}

template <class T, class I>
void max_forward_as(const Tensor& x_tensor, const PoolOptions& options, const Tensor& y_tensor,
                    const Tensor& index_tensor) {
  const Windows windows = pool_windows(x_tensor, y_tensor, options);
  const SpatialDims kernel = spatial_dims(options.kernel, 0, 1);
  for_each_tile(y_tensor, [&](const Tile& tile) {
    const auto x = tile.view<T>(x_tensor), y = tile.view<T>(y_tensor);
    std::optional<SpatialView<I>> index;
    if (index_tensor.defined()) index = tile.view<I>(index_tensor);
    const bool dense = x.channel_stride == 1 && y.channel_stride == 1 &&
                       (!index || index->channel_stride == 1);
    dispatch_full(dense && tile.is_full(), [&]<bool full>() {
      const std::int64_t x_stride = full ? 1 : x.channel_stride,
                         y_stride = full ? 1 : y.channel_stride;
      for (std::int64_t w = 0; w < tile.width; ++w) {
        const SpatialDims out{tile.d, tile.h, w}, origin = windows.origin(out);
        alignas(64) Accumulate<T> best[tile_size];
        alignas(64) std::int32_t where[tile_size];
        bool started = false;
        windows.for_each_input(out, [&](const SpatialDims& in) {
          const T* from = x.at(in);
          const auto position = static_cast<std::int32_t>(position_in_window(in, origin, kernel));
          if (!started)
            for_each_channel<full>(tile.count, [&](std::int64_t c) {
              best[c] = from[c * x_stride], where[c] = position;
            });
          else
            for_each_channel<full>(tile.count, [&](std::int64_t c) {
              const Accumulate<T> value = from[c * x_stride];
              const bool better = is_larger(value, best[c]);
              best[c] = better ? value : best[c];
              where[c] = better ? position : where[c];
            });
          started = true;
        });
        T* to = y.at(out);
        for_each_channel<full>(tile.count, [&](std::int64_t c) { to[c * y_stride] = T(best[c]); });
        if (!index) continue;
        I* to_index = index->at(out);
        const std::int64_t stride = full ? 1 : index->channel_stride;
        for_each_channel<full>(
            tile.count, [&](std::int64_t c) { to_index[c * stride] = static_cast<I>(where[c]); });
      }
    });
  });
}

// The contribution of one output whose window contains the input position: its gradients of the
// tile's channels, which are `stride` apart, and the sums to which they are added.
template <class T>
struct Contribution {
  std::int64_t count;
  const SpatialDims &in, &out;
  const T* dy;
  std::int64_t stride;
  Accumulate<T>* sum;
};

// Computes dx at every input position: with add = add_for(tile), calls
// add.operator()<full>(const Contribution&) for all outputs whose windows contain the position.
// `adjacent` tells whether the channels of what else add_for() reads are adjacent in memory.
template <class T, class AddFor>
void gather_backward(const Tensor& dy_tensor, const Tensor& dx_tensor, const Windows& windows,
                     bool adjacent, const AddFor& add_for) {
  for_each_tile(dx_tensor, [&](const Tile& tile) {
    const auto dx = tile.view<T>(dx_tensor), dy = tile.view<T>(dy_tensor);
    const auto add = add_for(tile);
    const bool dense = adjacent && dx.channel_stride == 1 && dy.channel_stride == 1;
    dispatch_full(dense && tile.is_full(), [&]<bool full>() {
      const std::int64_t dx_stride = full ? 1 : dx.channel_stride,
                         dy_stride = full ? 1 : dy.channel_stride;
      for (std::int64_t w = 0; w < tile.width; ++w) {
        const SpatialDims in{tile.d, tile.h, w};
        alignas(64) Accumulate<T> sum[tile_size] = {};
        windows.for_each_output(in, [&](const SpatialDims& out) {
          add.template operator()<full>(
              Contribution<T>{tile.count, in, out, dy.at(out), dy_stride, sum});
        });
        T* to = dx.at(in);
        for_each_channel<full>(tile.count, [&](std::int64_t c) { to[c * dx_stride] = T(sum[c]); });
      }
    });
  });
}

template <class T, class I>
void max_backward_as(const Tensor& dy, const Tensor& index_tensor, const PoolOptions& options,
                     const Tensor& dx) {
  const Windows windows = pool_windows(dx, dy, options);
  const SpatialDims kernel = spatial_dims(options.kernel, 0, 1);
  const bool adjacent = index_tensor.strides()[1] == 1;
  gather_backward<T>(dy, dx, windows, adjacent, [&](const Tile& tile) {
    return [&, index = tile.view<I>(index_tensor)]<bool full>(const Contribution<T>& of) {
      const I* where = index.at(of.out);
      const std::int64_t stride = full ? 1 : index.channel_stride, dy_stride = full ? 1 : of.stride;
      const auto own = static_cast<I>(position_in_window(of.in, windows.origin(of.out), kernel));
      for_each_channel<full>(of.count, [&](std::int64_t c) {
        of.sum[c] += where[c * stride] == own ? static_cast<Accumulate<T>>(of.dy[c * dy_stride])
                                              : 0;
      });
    };
  });
}

void average_forward_over(const Tensor& x_tensor, const Windows& windows, const Tensor& y_tensor) {
  dispatch(RealTypes{}, x_tensor.dtype(), "average pooling", [&]<class T>() {
    using A = Accumulate<T>;
    for_each_tile(y_tensor, [&](const Tile& tile) {
      const auto x = tile.view<T>(x_tensor), y = tile.view<T>(y_tensor);
      const bool dense = x.channel_stride == 1 && y.channel_stride == 1;
      dispatch_full(dense && tile.is_full(), [&]<bool full>() {
        const std::int64_t x_stride = full ? 1 : x.channel_stride,
                           y_stride = full ? 1 : y.channel_stride;
        for (std::int64_t w = 0; w < tile.width; ++w) {
          const SpatialDims out{tile.d, tile.h, w};
          const auto &rd = windows.at(0, out[0]).range, &rh = windows.at(1, out[1]).range,
                     &rw = windows.at(2, out[2]).range;
          alignas(64) A sum[tile_size] = {};
          for (std::int64_t d = rd.begin; d < rd.end; ++d)
            for (std::int64_t h = rh.begin; h < rh.end; ++h) {
              // Rows are summed first: the error grows with the window's edge, not its area.
              alignas(64) A row[tile_size] = {};
              for (std::int64_t in_w = rw.begin; in_w < rw.end; ++in_w) {
                const T* from = x.at({d, h, in_w});
                for_each_channel<full>(tile.count, [&](std::int64_t c) {
                  row[c] += static_cast<A>(from[c * x_stride]);
                });
              }
              for_each_channel<full>(tile.count, [&](std::int64_t c) { sum[c] += row[c]; });
            }
          const A scale = 1 / static_cast<A>(windows.divisor(out));
          T* to = y.at(out);
          for_each_channel<full>(tile.count,
                                 [&](std::int64_t c) { to[c * y_stride] = T(sum[c] * scale); });
        }
      });
    });
  });
}

void average_backward_over(const Tensor& dy, const Windows& windows, const Tensor& dx) {
  dispatch(RealTypes{}, dy.dtype(), "average pooling", [&]<class T>() {
    using A = Accumulate<T>;
    const auto add = [&]<bool full>(const Contribution<T>& of) {
      const A scale = 1 / static_cast<A>(windows.divisor(of.out));
      const std::int64_t stride = full ? 1 : of.stride;
      for_each_channel<full>(of.count, [&](std::int64_t c) {
        of.sum[c] += scale * static_cast<A>(of.dy[c * stride]);
      });
    };
    gather_backward<T>(dy, dx, windows, true, [&](const Tile&) { return add; });
  });
}

template <class Body>
void dispatch_index_type(const Dims& kernel, Body&& body) {
  pool_index_dtype(kernel) == uint8 ? body.template operator()<std::uint8_t>()
                                    : body.template operator()<std::int64_t>();
}

}  // namespace

bool fills_tiles(const Tensor& x, const Tensor& y) {
  return TUTTI_CPU_VECTOR_BYTES == 64 && x.strides()[1] == 1 && y.strides()[1] == 1 &&
         x.shape()[1] % tile_size == 0;
}

void max_forward(const Tensor& x, const PoolOptions& options, const Tensor& y,
                 const Tensor& index) {
  dispatch(RealTypes{}, x.dtype(), "max pooling", [&]<class T>() {
    dispatch_index_type(options.kernel,
                        [&]<class I>() { max_forward_as<T, I>(x, options, y, index); });
  });
}

void max_backward(const Tensor& dy, const Tensor& index, const PoolOptions& options,
                  const Tensor& dx) {
  dispatch(RealTypes{}, dy.dtype(), "max pooling", [&]<class T>() {
    dispatch_index_type(options.kernel,
                        [&]<class I>() { max_backward_as<T, I>(dy, index, options, dx); });
  });
}

void average_forward(const Tensor& x, const PoolOptions& options, const Tensor& y) {
  average_forward_over(x, pool_windows(x, y, options), y);
}

void average_backward(const Tensor& dy, const PoolOptions& options, const Tensor& dx) {
  average_backward_over(dy, pool_windows(dx, dy, options), dx);
}

void adaptive_average_forward(const Tensor& x, const Tensor& y) {
  average_forward_over(x, adaptive_windows(x, y), y);
}

void adaptive_average_backward(const Tensor& dy, const Tensor& dx) {
  average_backward_over(dy, adaptive_windows(dx, dy), dx);
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL::pooling_loops

#include "../../core/end_cpu_level.h"
