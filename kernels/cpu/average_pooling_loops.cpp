// Average pooling, ordinary and adaptive, over tiles of channels; in channels_last these are
// adjacent in memory. Up to `values_in_float` values are added in float32, and their sums in
// float64, so that the rounding errors do not grow with the window.
#include "pooling_tiles.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL::pooling_loops {
namespace {

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

void average_forward_over(const Tensor& x_tensor, const Windows& windows, const Tensor& y_tensor) {
  dispatch(RealTypes{}, x_tensor.dtype(), "average pooling", [&]<class T>() {
    using A = Accumulate<T>;
    for_each_tile(y_tensor, tile_size, [&](const Tile& tile) {
      const auto x = tile.view<T>(x_tensor), y = tile.view<T>(y_tensor);
      const bool dense = x.channel_stride == 1 && y.channel_stride == 1;
      dispatch_full(dense && tile.is_full(), [&]<bool full>() {
        const std::int64_t x_stride = full ? 1 : x.channel_stride,
                           y_stride = full ? 1 : y.channel_stride;
        for (std::int64_t w = 0; w < tile.width; ++w) {
          const SpatialDims out{tile.d, tile.h, w};
          const auto &rd = windows.at(0, out[0]).range, &rh = windows.at(1, out[1]).range,
                     &rw = windows.at(2, out[2]).range;
          alignas(64) double sum[tile_size] = {};
          for (std::int64_t d = rd.begin; d < rd.end; ++d)
            for (std::int64_t h = rh.begin; h < rh.end; ++h)
              for (std::int64_t in_w = rw.begin; in_w < rw.end;) {
                alignas(64) A part[tile_size] = {};
                for (const auto end = std::min(rw.end, in_w + values_in_float); in_w < end;
                     ++in_w) {
                  const T* from = x.at({d, h, in_w});
                  for_each_channel<full>(tile.count, [&](std::int64_t c) {
                    part[c] += static_cast<A>(from[c * x_stride]);
                  });
                }
                for_each_channel<full>(
                    tile.count, [&](std::int64_t c) { sum[c] += static_cast<double>(part[c]); });
              }
          const double scale = 1 / static_cast<double>(windows.divisor(out));
          T* to = y.at(out);
          for_each_channel<full>(tile.count, [&](std::int64_t c) {
            to[c * y_stride] = T(static_cast<A>(sum[c] * scale));
          });
        }
      });
    });
  });
}

// Computes each gradient from all outputs whose windows contain its position.
void average_backward_over(const Tensor& dy_tensor, const Windows& windows,
                           const Tensor& dx_tensor) {
  dispatch(RealTypes{}, dy_tensor.dtype(), "average pooling", [&]<class T>() {
    using A = Accumulate<T>;
    for_each_tile(dx_tensor, tile_size, [&](const Tile& tile) {
      const auto dx = tile.view<T>(dx_tensor), dy = tile.view<T>(dy_tensor);
      const bool dense = dx.channel_stride == 1 && dy.channel_stride == 1;
      dispatch_full(dense && tile.is_full(), [&]<bool full>() {
        const std::int64_t dx_stride = full ? 1 : dx.channel_stride,
                           dy_stride = full ? 1 : dy.channel_stride;
        for (std::int64_t w = 0; w < tile.width; ++w) {
          const SpatialDims in{tile.d, tile.h, w};
          alignas(64) double sum[tile_size] = {};
          windows.for_each_output(in, [&](const SpatialDims& out) {
            const double scale = 1 / static_cast<double>(windows.divisor(out));
            const T* from = dy.at(out);
            for_each_channel<full>(tile.count, [&](std::int64_t c) {
              sum[c] += scale * static_cast<double>(static_cast<A>(from[c * dy_stride]));
            });
          });
          T* to = dx.at(in);
          for_each_channel<full>(
              tile.count, [&](std::int64_t c) { to[c * dx_stride] = T(static_cast<A>(sum[c])); });
        }
      });
    });
  });
}

}  // namespace

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
