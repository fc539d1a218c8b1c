// Max pooling: channels that are adjacent in memory are computed in vectors, others one by one.
#include "../reduce_functions.h"
#include "pooling_tiles.h"
#include "vector.h"

#include <cstring>
#include <optional>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL::pooling_loops {
namespace {

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
  const Windows windows = pool_windows(x, y, options);
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
  const Windows windows = pool_windows(dx, dy, options);
  const SpatialDims kernel = spatial_dims(options.kernel, 0, 1);
  if constexpr (fits_lanes<T, I>)
    if (dy.strides()[1] == 1 && dx.strides()[1] == 1 && index.strides()[1] == 1)
      return max_backward_adjacent<T>(dy, index, windows, kernel, dx);
  max_backward_any<T, I>(dy, index, windows, kernel, dx);
}

template <class Body>
void dispatch_index_type(const Dims& kernel, Body&& body) {
  pool_index_dtype(kernel) == uint8 ? body.template operator()<std::uint8_t>()
                                    : body.template operator()<std::int64_t>();
}

}  // namespace

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

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL::pooling_loops

#include "../../core/end_cpu_level.h"
