// Pooling on the CPU: oneDNN where it can, and plain code for float64, for windows that differ in
// size, for large windows and for odd strides. In the plain code outputs are gathered: each element
// of the result is computed once, from all windows it has a part in, so nothing is zeroed first and
// nothing is read back and added to. The inner loops run over a tile of channels held in registers,
// which in channels_last are neighbours in memory.
#include "../pooling.h"

#include "../../core/parallel.h"
#include "onednn.h"
#include "triple.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

namespace tutti::kernels::cpu {
namespace {

// A half-open range of positions, and how many elements the average over it divides by.
struct Window {
  std::int64_t begin, end, count, origin;  // origin: where the window starts, padding included
};
using Windows =
    std::array<std::vector<Window>, 3>;  // of every output position, for each spatial dimension

Windows pool_windows(const Tensor& x, const Tensor& y, const PoolOptions& options) {
  const Triple in = triple(x.shape(), 2, 1), out = triple(y.shape(), 2, 1),
               kernel = triple(options.kernel, 0, 1), stride = triple(options.stride, 0, 1),
               padding = triple(options.padding, 0, 0);
  Windows windows;
  for (std::size_t d = 0; d < 3; ++d)
    for (std::int64_t o = 0; o < out[d]; ++o) {
      const std::int64_t origin = o * stride[d] - padding[d];
      const std::int64_t begin = std::max<std::int64_t>(origin, 0),
                         end = std::min(origin + kernel[d], in[d]);
      windows[d].push_back(
          {begin, end, options.count_include_pad ? kernel[d] : end - begin, origin});
    }
  return windows;
}

Windows adaptive_windows(const Tensor& x, const Tensor& y) {
  const Triple in = triple(x.shape(), 2, 1), out = triple(y.shape(), 2, 1);
  Windows windows;
  for (std::size_t d = 0; d < 3; ++d)
    for (std::int64_t o = 0; o < out[d]; ++o) {
      const std::int64_t begin = o * in[d] / out[d], end = ((o + 1) * in[d] + out[d] - 1) / out[d];
      windows[d].push_back({begin, end, end - begin, begin});
    }
  return windows;
}

// For every input position the range of output positions whose windows contain it: windows move
// forward, so those are neighbours.
std::array<std::vector<Window>, 3> covering(const Windows& windows, const Triple& in) {
  std::array<std::vector<Window>, 3> result;
  for (std::size_t d = 0; d < 3; ++d) {
    const auto& of = windows[d];
    const auto outputs = static_cast<std::int64_t>(of.size());
    std::int64_t begin = 0, end = 0;
    for (std::int64_t i = 0; i < in[d]; ++i) {
      while (begin < outputs && of[static_cast<std::size_t>(begin)].end <= i) ++begin;
      while (end < outputs && of[static_cast<std::size_t>(end)].begin <= i) ++end;
      result[d].push_back({begin, std::max(begin, end), 0, 0});
    }
  }
  return result;
}

constexpr std::int64_t tile_size = 32;  // channels; two AVX-512 registers of float

// body(n, first channel, channels of the tile, d, h, w) for every position of `t`, a row of w at a
// time.
template <class Body>
void for_each_tile(const Tensor& t, Body&& body) {
  const Triple size = triple(t.shape(), 2, 1);
  const std::int64_t channels = t.shape()[1], tiles = (channels + tile_size - 1) / tile_size;
  const std::int64_t rows = t.shape()[0] * tiles * size[0] * size[1];
  parallel_for(rows, std::max<std::int64_t>(1, 512 / std::max<std::int64_t>(size[2], 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t h = i % size[1], d = i / size[1] % size[0];
                   const std::int64_t tile = i / (size[1] * size[0]) % tiles,
                                      n = i / (size[1] * size[0] * tiles);
                   const std::int64_t first = tile * tile_size;
                   body(n, first, std::min(tile_size, channels - first), d, h, size[2]);
                 }
               });
}

// The channel loops. `Full` tiles of neighbouring channels have constant bounds and strides, so
// they vectorise.
template <bool Full, class Body>
inline void lanes(std::int64_t count, Body&& body) {
  const std::int64_t n = Full ? tile_size : count;
  for (std::int64_t c = 0; c < n; ++c) body(c);
}

template <class Body>
void with_full(bool full, Body&& body) {
  full ? body.template operator()<true>() : body.template operator()<false>();
}

template <class T, class I>
void max_forward_as(const Tensor& x_tensor, const PoolOptions& options, const Tensor& y_tensor,
                    const Tensor& index) {
  const Windows windows = pool_windows(x_tensor, y_tensor, options);
  const Triple kernel = triple(options.kernel, 0, 1);
  for_each_tile(y_tensor, [&](std::int64_t n, std::int64_t first, std::int64_t count,
                              std::int64_t od, std::int64_t oh, std::int64_t width) {
    Volumes<T> x(x_tensor), y(y_tensor);
    x.move_to(n, first), y.move_to(n, first);
    std::optional<Volumes<I>> to_index;
    if (index.defined()) to_index.emplace(index), to_index->move_to(n, first);
    const bool full = count == tile_size && x.channel == 1 && y.channel == 1;
    with_full(full, [&]<bool Full>() {
      const std::int64_t xc = Full ? 1 : x.channel, yc = Full ? 1 : y.channel;
      const Window &wd = windows[0][static_cast<std::size_t>(od)],
                   &wh = windows[1][static_cast<std::size_t>(oh)];
      for (std::int64_t ow = 0; ow < width; ++ow) {
        const Window& ww = windows[2][static_cast<std::size_t>(ow)];
        alignas(64) Accumulate<T> best[tile_size];
        alignas(64) std::int32_t where[tile_size];
        bool started = false;
        for (std::int64_t d = wd.begin; d < wd.end; ++d)
          for (std::int64_t h = wh.begin; h < wh.end; ++h)
            for (std::int64_t w = ww.begin; w < ww.end; ++w) {
              const T* from = x.at(d, h, w);
              const auto position = static_cast<std::int32_t>(
                  ((d - wd.origin) * kernel[1] + h - wh.origin) * kernel[2] + w - ww.origin);
              if (!started) {
                lanes<Full>(count,
                            [&](std::int64_t c) { best[c] = from[c * xc], where[c] = position; });
                started = true;
                continue;
              }
              lanes<Full>(count, [&](std::int64_t c) {
                const Accumulate<T> value = from[c * xc];
                const bool better = value > best[c] || (value != value && best[c] == best[c]);
                best[c] = better ? value : best[c];
                where[c] = better ? position : where[c];
              });
            }
        T* to = y.at(od, oh, ow);
        lanes<Full>(count, [&](std::int64_t c) { to[c * yc] = T(best[c]); });
        if (!to_index) continue;
        I* to_where = to_index->at(od, oh, ow);
        const std::int64_t ic = to_index->channel;
        lanes<Full>(count, [&](std::int64_t c) { to_where[c * ic] = static_cast<I>(where[c]); });
      }
    });
  });
}

// dx at an input position: the sum over the windows that contain it of share(gradient, window
// position) * dy.
template <class T, class Add>
void gather_backward(const Tensor& dy_tensor, const Tensor& dx_tensor, const Windows& windows,
                     Add&& add) {
  const auto outputs = covering(windows, triple(dx_tensor.shape(), 2, 1));
  for_each_tile(dx_tensor, [&](std::int64_t n, std::int64_t first, std::int64_t count,
                               std::int64_t d, std::int64_t h, std::int64_t width) {
    Volumes<T> dx(dx_tensor), dy(dy_tensor);
    dx.move_to(n, first), dy.move_to(n, first);
    const Window &cd = outputs[0][static_cast<std::size_t>(d)],
                 &ch = outputs[1][static_cast<std::size_t>(h)];
    with_full(count == tile_size && dx.channel == 1 && dy.channel == 1, [&]<bool Full>() {
      for (std::int64_t w = 0; w < width; ++w) {
        const Window& cw = outputs[2][static_cast<std::size_t>(w)];
        alignas(64) Accumulate<T> sum[tile_size] = {};
        for (std::int64_t od = cd.begin; od < cd.end; ++od)
          for (std::int64_t oh = ch.begin; oh < ch.end; ++oh)
            for (std::int64_t ow = cw.begin; ow < cw.end; ++ow)
              add.template operator()<Full>(n, first, count, Triple{od, oh, ow}, Triple{d, h, w},
                                            dy.at(od, oh, ow), Full ? 1 : dy.channel, sum);
        T* to = dx.at(d, h, w);
        const std::int64_t step = Full ? 1 : dx.channel;
        lanes<Full>(count, [&](std::int64_t c) { to[c * step] = T(sum[c]); });
      }
    });
  });
}

const Window& window_of(const Windows& windows, std::size_t d, const Triple& out) {
  return windows[d][static_cast<std::size_t>(out[d])];
}

template <class T, class I>
void max_backward_as(const Tensor& dy, const Tensor& index_tensor, const PoolOptions& options,
                     const Tensor& dx) {
  const Windows windows = pool_windows(dx, dy, options);
  const Triple kernel = triple(options.kernel, 0, 1);
  gather_backward<T>(
      dy, dx, windows,
      [&]<bool Full>(std::int64_t n, std::int64_t first, std::int64_t count, const Triple& out,
                     const Triple& in, const T* from, std::int64_t step, Accumulate<T>* sum) {
        Volumes<I> index(index_tensor);
        index.move_to(n, first);
        const I* where = index.at(out[0], out[1], out[2]);
        std::int64_t position = 0;
        for (std::size_t d = 0; d < 3; ++d)
          position = position * kernel[d] + in[d] - window_of(windows, d, out).origin;
        const auto mine = static_cast<I>(position);
        lanes<Full>(count, [&](std::int64_t c) {
          sum[c] += where[c * index.channel] == mine ? static_cast<Accumulate<T>>(from[c * step])
                                                     : 0;
        });
      });
}

template <class T>
Accumulate<T> divisor(const Windows& windows, const Triple& out) {
  return static_cast<Accumulate<T>>(window_of(windows, 0, out).count *
                                    window_of(windows, 1, out).count *
                                    window_of(windows, 2, out).count);
}

void average_forward_over(const Tensor& x_tensor, const Windows& windows, const Tensor& y_tensor) {
  dispatch(RealTypes{}, x_tensor.dtype(), "average pooling", [&]<class T>() {
    for_each_tile(y_tensor, [&](std::int64_t n, std::int64_t first, std::int64_t count,
                                std::int64_t od, std::int64_t oh, std::int64_t width) {
      Volumes<T> x(x_tensor), y(y_tensor);
      x.move_to(n, first), y.move_to(n, first);
      with_full(count == tile_size && x.channel == 1 && y.channel == 1, [&]<bool Full>() {
        const std::int64_t xc = Full ? 1 : x.channel, yc = Full ? 1 : y.channel;
        for (std::int64_t ow = 0; ow < width; ++ow) {
          const Triple out{od, oh, ow};
          const Window &wd = window_of(windows, 0, out), &wh = window_of(windows, 1, out),
                       &ww = window_of(windows, 2, out);
          alignas(64) Accumulate<T> sum[tile_size] = {};
          for (std::int64_t d = wd.begin; d < wd.end; ++d)
            for (std::int64_t h = wh.begin; h < wh.end; ++h) {
              // Sums of sums: the error grows with the edge, not the area.
              alignas(64) Accumulate<T> row[tile_size] = {};
              for (std::int64_t w = ww.begin; w < ww.end; ++w) {
                const T* from = x.at(d, h, w);
                lanes<Full>(count, [&](std::int64_t c) {
                  row[c] += static_cast<Accumulate<T>>(from[c * xc]);
                });
              }
              lanes<Full>(count, [&](std::int64_t c) { sum[c] += row[c]; });
            }
          const Accumulate<T> scale = 1 / divisor<T>(windows, out);
          T* to = y.at(od, oh, ow);
          lanes<Full>(count, [&](std::int64_t c) { to[c * yc] = T(sum[c] * scale); });
        }
      });
    });
  });
}

void average_backward_over(const Tensor& dy, const Windows& windows, const Tensor& dx) {
  dispatch(RealTypes{}, dy.dtype(), "average pooling", [&]<class T>() {
    gather_backward<T>(
        dy, dx, windows,
        [&]<bool Full>(std::int64_t, std::int64_t, std::int64_t count, const Triple& out,
                       const Triple&, const T* from, std::int64_t step, Accumulate<T>* sum) {
          const Accumulate<T> scale = 1 / divisor<T>(windows, out);
          lanes<Full>(count, [&](std::int64_t c) {
            sum[c] += scale * static_cast<Accumulate<T>>(from[c * step]);
          });
        });
  });
}

template <class Body>
void with_index_type(const Dims& kernel, Body&& body) {
  pool_index_dtype(kernel) == uint8 ? body.template operator()<std::uint8_t>()
                                    : body.template operator()<std::int64_t>();
}

// oneDNN computes in these, given anything to compute.
bool fast(const Tensor& x, const Tensor& y) {
  return (x.dtype() == float32 || x.dtype() == bfloat16) && x.numel() > 0 && y.numel() > 0;
}

void max_forward(const Tensor& x, const PoolOptions& options, const Tensor& y,
                 const Tensor& index) {
  if (fast(x, y) && onednn::pooling_forward(x, options, true, y, index)) return;
  dispatch(RealTypes{}, x.dtype(), "max pooling", [&]<class T>() {
    with_index_type(options.kernel, [&]<class I>() { max_forward_as<T, I>(x, options, y, index); });
  });
}

void max_backward(const Tensor& dy, const Tensor& index, const PoolOptions& options,
                  const Tensor& dx) {
  if (fast(dx, dy) && onednn::pooling_backward(dy, index, options, true, dx)) return;
  dispatch(RealTypes{}, dy.dtype(), "max pooling", [&]<class T>() {
    with_index_type(options.kernel,
                    [&]<class I>() { max_backward_as<T, I>(dy, index, options, dx); });
  });
}

void average_forward(const Tensor& x, const PoolOptions& options, const Tensor& y) {
  if (fast(x, y) && onednn::pooling_forward(x, options, false, y, {})) return;
  average_forward_over(x, pool_windows(x, y, options), y);
}

void average_backward(const Tensor& dy, const PoolOptions& options, const Tensor& dx) {
  if (fast(dx, dy) && onednn::pooling_backward(dy, {}, options, false, dx)) return;
  average_backward_over(dy, pool_windows(dx, dy, options), dx);
}

// The ordinary pooling that an adaptive one is where its windows are all alike, as global pooling's
// single one is.
std::optional<PoolOptions> even_windows(const Tensor& x, const Tensor& y) {
  PoolOptions options;
  for (int d = 2; d < x.rank(); ++d) {
    if (y.shape()[d] == 0 || x.shape()[d] % y.shape()[d] != 0) return {};
    options.kernel.push_back(x.shape()[d] / y.shape()[d]);
    options.padding.push_back(0);
  }
  options.stride = options.kernel;
  return options;
}

void adaptive_average_forward(const Tensor& x, const Tensor& y) {
  if (const auto options = even_windows(x, y)) return average_forward(x, *options, y);
  average_forward_over(x, adaptive_windows(x, y), y);
}

void adaptive_average_backward(const Tensor& dy, const Tensor& dx) {
  if (const auto options = even_windows(dx, dy)) return average_backward(dy, *options, dx);
  average_backward_over(dy, adaptive_windows(dx, dy), dx);
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

}  // namespace tutti::kernels::cpu
