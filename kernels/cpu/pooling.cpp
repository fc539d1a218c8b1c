// Pooling on the CPU: loops that take every floating dtype, window and layout. They compute each
// element of a result once, from all windows that contain it, so that no memory is zeroed first or
// read back. They go over tiles of channels, which are adjacent in memory in channels_last; threads
// share the tiles.
#include "../kernels.h"

#include "../../core/parallel.h"
#include "../element_types.h"
#include "../operations.h"
#include "../pooling_windows.h"
#include "spatial.h"
#include "vector.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

// The channels that a loop computes at a time: two AVX-512 registers of float.
constexpr std::int64_t tile_size = 32;

// The most values that are added in the accumulation type: the sum is then within 2^8 roundings.
constexpr std::int64_t values_in_float = 256;

// ---- Windows and tiles.

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

Windows windows_of(const Tensor& x, const Tensor& y, const PoolOptions& options) {
  if (options.kernel.empty()) return adaptive_windows(x, y);
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

// Calls body(const Tile&) for tiles of at most `longest` channels that cover `t`, from several
// threads.
template <class Body>
void for_each_tile(const Tensor& t, std::int64_t longest, const Body& body) {
  if (t.numel() == 0) return;
  const SpatialDims size = spatial_dims(t.shape(), 2, 1);
  const std::int64_t channels = t.shape()[1], tiles = (channels + longest - 1) / longest;
  const std::int64_t rows = t.shape()[0] * tiles * size[0] * size[1];
  parallel_for(rows, 512 * tile_size / (longest * size[2]),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t h = i % size[1], d = i / size[1] % size[0];
                   const std::int64_t tile = i / (size[1] * size[0]) % tiles,
                                      n = i / (size[1] * size[0] * tiles);
                   const std::int64_t first = tile * longest;
                   body(Tile{n, first, std::min(longest, channels - first), d, h, size[2]});
                 }
               });
}

// ---- Max pooling: channels that are adjacent in memory are computed in vectors, others one by
// one.

// Returns the row-major index of input position `in` in a window that starts at `origin`.
std::int64_t position_in_window(const SpatialDims& in, const SpatialDims& origin,
                                const SpatialDims& kernel) {
  std::int64_t position = 0;
  for (std::size_t d = 0; d < 3; ++d) position = position * kernel[d] + in[d] - origin[d];
  return position;
}

// Positions in windows, which are below 256, as bytes in memory and as floats in lanes. GCC
// converts vectors in steps of a factor of 2 and takes others apart into single elements.
typedef std::int32_t Integers __attribute__((vector_size(vector_bytes)));
typedef std::uint16_t Halves __attribute__((vector_size(vector_bytes / 2)));
typedef std::uint8_t Bytes __attribute__((vector_size(vector_bytes / 4)));

void store_positions(std::uint8_t* to, float position) {
  *to = static_cast<std::uint8_t>(position);
}

[[gnu::always_inline]] inline void store_positions(std::uint8_t* to, Vector<float>::V positions) {
  const Integers integers = __builtin_convertvector(positions, Integers);
  const Halves halves = __builtin_convertvector(integers, Halves);
  const Bytes bytes = __builtin_convertvector(halves, Bytes);
  std::memcpy(to, &bytes, sizeof(bytes));
}

// Returns which positions are equal to `position`.
template <class T>
bool match_positions(Scalar<T>, const std::uint8_t* from, std::int32_t position) {
  return *from == position;
}

template <class T>
[[gnu::always_inline]] inline Integers match_positions(Vector<T>, const std::uint8_t* from,
                                                       std::int32_t position) {
  Bytes bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  const Halves halves = __builtin_convertvector(bytes, Halves);
  return __builtin_convertvector(halves, Integers) == Integers{} + position;
}

// For float32 or bfloat16, where channels are adjacent in memory and indices are bytes: the maxima
// of a window stay in registers.
template <class T>
void max_forward_adjacent(const Tensor& x_tensor, const Windows& windows, const SpatialDims& kernel,
                          const Tensor& y_tensor, const Tensor& index_tensor) {
  struct Input {
    const T* data;
    float position;
  };
  for_each_tile(y_tensor, y_tensor.shape()[1], [&](const Tile& tile) {
    const auto x = tile.view<T>(x_tensor), y = tile.view<T>(y_tensor);
    std::optional<SpatialView<std::uint8_t>> index;
    if (index_tensor.defined()) index = tile.view<std::uint8_t>(index_tensor);
    std::array<Input, 256> inputs;  // as many as a byte can tell apart
    for (std::int64_t w = 0; w < tile.width; ++w) {
      const SpatialDims out{tile.d, tile.h, w}, origin = windows.origin(out);
      std::size_t count = 0;
      windows.for_each_input(out, [&](const SpatialDims& in) {
        const std::int64_t position = position_in_window(in, origin, kernel);
        inputs[count++] = {x.at(in), static_cast<float>(position)};
      });
      T* const to = y.at(out);
      std::uint8_t* const to_index = index ? index->at(out) : nullptr;
      for_lanes<T>(tile.count, [&](std::int64_t c, auto lanes) {
        using V = typename decltype(lanes)::V;
        V best = lanes.load(inputs[0].data + c), where = V{} + inputs[0].position;
        for (std::size_t i = 1; i < count; ++i) {
          const V value = lanes.load(inputs[i].data + c);
          const auto keeps = (value <= best) | (best != best);  // as !is_larger(value, best)
          best = keeps ? best : value;
          where = keeps ? where : V{} + inputs[i].position;
        }
        lanes.store(to + c, best);
        if (to_index) store_positions(to_index + c, where);
      });
    }
  });
}

template <class T, class I>
constexpr bool fits_lanes = std::is_same_v<Accumulate<T>, float> && sizeof(I) == 1;

template <class T, class I>
void max_forward_any(const Tensor& x_tensor, const Windows& windows, const SpatialDims& kernel,
                     const Tensor& y_tensor, const Tensor& index_tensor) {
  for_each_tile(y_tensor, tile_size, [&](const Tile& tile) {
    const auto x = tile.view<T>(x_tensor), y = tile.view<T>(y_tensor);
    std::optional<SpatialView<I>> index;
    if (index_tensor.defined()) index = tile.view<I>(index_tensor);
    for (std::int64_t w = 0; w < tile.width; ++w) {
      const SpatialDims out{tile.d, tile.h, w}, origin = windows.origin(out);
      T best[tile_size];
      std::int64_t where[tile_size];
      bool started = false;
      windows.for_each_input(out, [&](const SpatialDims& in) {
        const T* from = x.at(in);
        const std::int64_t position = position_in_window(in, origin, kernel);
        for (std::int64_t c = 0; c < tile.count; ++c) {
          const T value = from[c * x.channel_stride];
          const bool better = !started || is_larger<Accumulate<T>>(value, best[c]);
          best[c] = better ? value : best[c];
          where[c] = better ? position : where[c];
        }
        started = true;
      });
      T* to = y.at(out);
      for (std::int64_t c = 0; c < tile.count; ++c) to[c * y.channel_stride] = best[c];
      if (!index) continue;
      I* to_index = index->at(out);
      for (std::int64_t c = 0; c < tile.count; ++c)
        to_index[c * index->channel_stride] = static_cast<I>(where[c]);
    }
  });
}

template <class T, class I>
void max_forward_as(const Tensor& x, const PoolOptions& options, const Tensor& y,
                    const Tensor& index) {
  const Windows windows = windows_of(x, y, options);
  const SpatialDims kernel = spatial_dims(options.kernel, 0, 1);
  const bool adjacent = x.strides()[1] == 1 && y.strides()[1] == 1 &&
                        (!index.defined() || index.strides()[1] == 1);
  if constexpr (fits_lanes<T, I>)
    if (adjacent) return max_forward_adjacent<T>(x, windows, kernel, y, index);
  max_forward_any<T, I>(x, windows, kernel, y, index);
}

// As max_forward_adjacent(): the sum of an input position's gradients stays in registers.
template <class T>
void max_backward_adjacent(const Tensor& dy_tensor, const Tensor& index_tensor,
                           const Windows& windows, const SpatialDims& kernel,
                           const Tensor& dx_tensor) {
  struct Output {
    const T* dy;
    const std::uint8_t* index;
    std::int32_t position;  // of the input in the output's window
  };
  for_each_tile(dx_tensor, dx_tensor.shape()[1], [&](const Tile& tile) {
    const auto dx = tile.view<T>(dx_tensor), dy = tile.view<T>(dy_tensor);
    const auto index = tile.view<std::uint8_t>(index_tensor);
    std::array<Output, 256> outputs;  // no more windows contain a position than it has positions
    for (std::int64_t w = 0; w < tile.width; ++w) {
      const SpatialDims in{tile.d, tile.h, w};
      std::size_t count = 0;
      windows.for_each_output(in, [&](const SpatialDims& out) {
        const std::int64_t position = position_in_window(in, windows.origin(out), kernel);
        outputs[count++] = {dy.at(out), index.at(out), static_cast<std::int32_t>(position)};
      });
      T* const to = dx.at(in);
      for_lanes<T>(tile.count, [&](std::int64_t c, auto lanes) {
        using V = typename decltype(lanes)::V;
        V sum = {};
        for (std::size_t i = 0; i < count; ++i) {
          const auto is_own = match_positions(lanes, outputs[i].index + c, outputs[i].position);
          sum += is_own ? lanes.load(outputs[i].dy + c) : V{};
        }
        lanes.store(to + c, sum);
      });
    }
  });
}

template <class T, class I>
void max_backward_any(const Tensor& dy_tensor, const Tensor& index_tensor, const Windows& windows,
                      const SpatialDims& kernel, const Tensor& dx_tensor) {
  for_each_tile(dx_tensor, tile_size, [&](const Tile& tile) {
    const auto dx = tile.view<T>(dx_tensor), dy = tile.view<T>(dy_tensor);
    const auto index = tile.view<I>(index_tensor);
    for (std::int64_t w = 0; w < tile.width; ++w) {
      const SpatialDims in{tile.d, tile.h, w};
      // In windows whose index is int64, an input may be the maximum of 256 or more.
      using S = std::conditional_t<std::is_same_v<I, std::int64_t>, double, Accumulate<T>>;
      S sum[tile_size] = {};
      windows.for_each_output(in, [&](const SpatialDims& out) {
        const auto own = static_cast<I>(position_in_window(in, windows.origin(out), kernel));
        const I* where = index.at(out);
        const T* from = dy.at(out);
        for (std::int64_t c = 0; c < tile.count; ++c)
          if (where[c * index.channel_stride] == own)
            sum[c] += S(static_cast<Accumulate<T>>(from[c * dy.channel_stride]));
      });
      T* to = dx.at(in);
      for (std::int64_t c = 0; c < tile.count; ++c)
        to[c * dx.channel_stride] = T(static_cast<Accumulate<T>>(sum[c]));
    }
  });
}

template <class T, class I>
void max_backward_as(const Tensor& dy, const Tensor& index, const PoolOptions& options,
                     const Tensor& dx) {
  const Windows windows = windows_of(dx, dy, options);
  const SpatialDims kernel = spatial_dims(options.kernel, 0, 1);
  if constexpr (fits_lanes<T, I>)
    if (dy.strides()[1] == 1 && dx.strides()[1] == 1 && index.strides()[1] == 1)
      return max_backward_adjacent<T>(dy, index, windows, kernel, dx);
  max_backward_any<T, I>(dy, index, windows, kernel, dx);
}

// The type of max pooling's indices.
template <bool is_byte>
using Index = std::conditional_t<is_byte, std::uint8_t, std::int64_t>;

void max_forward(const Tensor& x, const PoolOptions& options, const Tensor& y,
                 const Tensor& index) {
  dispatch(RealTypes{}, x.dtype(), "max pooling", [&]<class T>() {
    dispatch_flag(pool_index_dtype(options.kernel) == uint8,
                  [&]<bool is_byte>() { max_forward_as<T, Index<is_byte>>(x, options, y, index); });
  });
}

void max_backward(const Tensor& dy, const Tensor& index, const PoolOptions& options,
                  const Tensor& dx) {
  dispatch(RealTypes{}, dy.dtype(), "max pooling", [&]<class T>() {
    dispatch_flag(pool_index_dtype(options.kernel) == uint8, [&]<bool is_byte>() {
      max_backward_as<T, Index<is_byte>>(dy, index, options, dx);
    });
  });
}

// ---- Average pooling. Up to `values_in_float` values are added in float32, and their sums in
// float64, so that the rounding errors do not grow with the window.

// Loops over the channels of a tile. Full tiles of neighbouring channels have constant bounds and
// strides, so that their loops vectorise.
template <bool full, class Body>
inline void for_each_channel(std::int64_t count, const Body& body) {
  const std::int64_t n = full ? tile_size : count;
  for (std::int64_t c = 0; c < n; ++c) body(c);
}

void average_forward(const Tensor& x_tensor, const PoolOptions& options, const Tensor& y_tensor) {
  const Windows windows = windows_of(x_tensor, y_tensor, options);
  dispatch(RealTypes{}, x_tensor.dtype(), "average pooling", [&]<class T>() {
    using A = Accumulate<T>;
    for_each_tile(y_tensor, tile_size, [&](const Tile& tile) {
      const auto x = tile.view<T>(x_tensor), y = tile.view<T>(y_tensor);
      const bool dense = x.channel_stride == 1 && y.channel_stride == 1;
      dispatch_flag(dense && tile.is_full(), [&]<bool full>() {
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
void average_backward(const Tensor& dy_tensor, const PoolOptions& options,
                      const Tensor& dx_tensor) {
  const Windows windows = windows_of(dx_tensor, dy_tensor, options);
  dispatch(RealTypes{}, dy_tensor.dtype(), "average pooling", [&]<class T>() {
    using A = Accumulate<T>;
    for_each_tile(dx_tensor, tile_size, [&](const Tile& tile) {
      const auto dx = tile.view<T>(dx_tensor), dy = tile.view<T>(dy_tensor);
      const bool dense = dx.channel_stride == 1 && dy.channel_stride == 1;
      dispatch_flag(dense && tile.is_full(), [&]<bool full>() {
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

extern const Pooling pooling{.max_forward = max_forward,
                             .max_backward = max_backward,
                             .average_forward = average_forward,
                             .average_backward = average_backward};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
