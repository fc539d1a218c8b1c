// What the loops of max and of average pooling share: the windows of every output and the outputs
// of every input, and the tiles of channels that threads compute.
#pragma once

#include "../../core/parallel.h"
#include "../pooling_windows.h"
#include "pooling_loops.h"
#include "spatial.h"

#include <algorithm>
#include <vector>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL::pooling_loops {

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

inline Windows pool_windows(const Tensor& x, const Tensor& y, const PoolOptions& options) {
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

inline Windows adaptive_windows(const Tensor& x, const Tensor& y) {
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
  parallel_for(rows, std::max<std::int64_t>(1, 512 * tile_size / (longest * size[2])),
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

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL::pooling_loops

#include "../../core/end_cpu_level.h"
