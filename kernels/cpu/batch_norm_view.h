// What the CPU's batch norm kernels share: how they look at a tensor, and per-channel numbers in
// registers' reach.
//
// channels_last is `rows` of C values; a narrow row is read as several rows side by side (`group`),
// so that loops over a row are long enough to vectorise. contiguous is N x C planes of `inner`
// values.
#pragma once

#include "../../core/parallel.h"
#include "../batch_norm.h"
#include "vector.h"

#include <algorithm>
#include <type_traits>
#include <vector>

namespace tutti::kernels::cpu {

struct View {
  std::int64_t outer = 0;  ///< rows, or samples
  std::int64_t channels = 0;
  std::int64_t inner = 1;  ///< elements of a plane; 1 for rows
  bool rows = true;

  explicit View(const Tensor& x) : channels(x.size(1)) {
    rows = x.is_contiguous(MemoryFormat::channels_last);
    if (!rows && !x.is_contiguous())
      fail<ShapeError>(
          "batch_norm kernel: expected a dense tensor, contiguous or channels_last, got shape {}, "
          "strides {}",
          to_string(x.shape()), to_string(x.strides()));
    inner = rows ? 1 : product(x.shape(), 2, x.rank());
    outer = x.numel() == 0 ? 0 : x.numel() / (channels * inner);
  }
  bool short_planes() const { return !rows && inner < 512; }
  std::int64_t count() const { return outer * inner; }  ///< elements per channel
  /// Rows to read side by side: a power of two that makes them at least `wide` values and a whole
  /// number of vectors.
  std::int64_t group(std::int64_t wide = 256) const {
    std::int64_t g = 1;
    while (g * channels < wide || g * channels % 16 != 0) g *= 2;
    return g;
  }
};

/// The numbers of a dense tensor as A.
template <class A>
void copy_values(const Tensor& t, std::vector<A>& values) {
  dispatch(FloatTypes{}, t.dtype(), "batch_norm", [&]<class T>() {
    std::transform(t.data<T>(), t.data<T>() + values.size(), values.begin(),
                   [](T v) { return static_cast<A>(v); });
  });
}

/// A per-channel parameter as double; `absent` where it is undefined.
inline std::vector<double> channel_values(const Tensor& t, std::int64_t channels, double absent) {
  std::vector<double> values(static_cast<std::size_t>(channels), absent);
  if (t.defined()) copy_values(t, values);
  return values;
}

/// The weights of the positions as what is computed in; empty where there are none.
template <class A>
std::vector<A> weight_values(const Tensor& weights, const View& v) {
  std::vector<A> values(static_cast<std::size_t>(weights.defined() ? v.count() : 0));
  if (weights.defined()) copy_values(weights, values);
  return values;
}

/// The first `channels` values over and over.
template <class A>
void repeat(std::vector<A>& values, std::int64_t channels) {
  for (auto to = values.begin() + channels; to != values.end(); to += channels)
    std::copy_n(values.begin(), channels, to);
}

/// z = (x - center) scale + shift. The center is the mean rounded to A and what the rounding lost
/// is in the shift, so that nothing is lost where the mean is many standard deviations from 0.
template <class A>
struct Affine {
  std::vector<A> center, scale, shift;  ///< each `group` times over

  Affine(const Normalization& to, std::int64_t channels, std::int64_t group) {
    const double *mean = to.mean.data<double>(), *rstd = to.rstd.data<double>();
    const auto weight = channel_values(to.weight, channels, 1),
               bias = channel_values(to.bias, channels, 0);
    for (auto* values : {&center, &scale, &shift})
      values->resize(static_cast<std::size_t>(channels * group));
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c) {
      const A rounded = static_cast<A>(mean[c]);
      const double factor = weight[c] * rstd[c];
      center[c] = rounded;
      scale[c] = static_cast<A>(factor);
      shift[c] = static_cast<A>(bias[c] - (mean[c] - static_cast<double>(rounded)) * factor);
    }
    for (auto* values : {&center, &scale, &shift}) repeat(*values, channels);
  }
};

/// How much a thread does in ascending order, as prefetchers want it, before it steps back: see
/// parallel_backwards.
constexpr std::int64_t elements_in_turn = 65536;

/// Runs body(first, last) over [0, n) in parallel, each thread in blocks of `block` from its end to
/// its beginning: a second pass that goes backwards finds what the first one read last still in the
/// cache.
template <class Body>
void parallel_backwards(std::int64_t n, std::int64_t grain, std::int64_t block, const Body& body) {
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t last = end; last > begin;) {
      const std::int64_t first = std::max(begin, last - block);
      body(first, last);
      last = first;
    }
  });
}

/// How a reduction over all elements of a channel is cut, by the shape alone: `chunks` of rows (or
/// samples), and `blocks` of channels. Partial results are merged in order, so no result depends on
/// the thread count.
struct Tiles {
  std::int64_t chunks = 1, blocks = 1, grain = 1;

  explicit Tiles(const View& v) {
    const std::int64_t elements = v.count() * v.channels;
    if (v.rows) {
      chunks = std::clamp<std::int64_t>(std::min(v.outer / 64, elements / 32768), 1, 32);
      if (chunks == 1) blocks = std::clamp<std::int64_t>(v.channels / 128, 1, 32);
    } else {
      blocks = std::min<std::int64_t>(v.channels, 32);
      if (blocks < 16) chunks = std::clamp<std::int64_t>(v.outer, 1, 32 / blocks);
    }
    grain =
        std::max<std::int64_t>(1, 16384 * chunks * blocks / std::max<std::int64_t>(elements, 1));
  }
  /// body(chunk, first outer, last outer, first channel, last channel) for every tile.
  template <class Body>
  void run(const View& v, const Body& body) const {
    parallel_for(chunks * blocks, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t k = t / blocks, b = t % blocks;
        const auto channel = [&](std::int64_t i) {
          return i == blocks ? v.channels
                             : v.channels * i / blocks / (v.rows ? 16 : 1) * (v.rows ? 16 : 1);
        };
        body(k, v.outer * k / chunks, v.outer * (k + 1) / chunks, channel(b), channel(b + 1));
      }
    });
  }
};

}  // namespace tutti::kernels::cpu
