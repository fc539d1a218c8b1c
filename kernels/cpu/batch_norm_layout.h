// This file declares the passes over activations of the CPU's batch norm, each of which has a
// source file of its own, and describes how they read a tensor: its memory layout, the division of
// a reduction into tiles for threads, and per-channel numbers as arrays that loops over a row can
// read. The formulas for those numbers are in kernels/batch_norm_math.h. The per-channel steps
// between the passes and the table are in batch_norm.cpp.
#pragma once

#include "../../core/parallel.h"
#include "../batch_norm_math.h"
#include "vector.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

void batch_norm_moments(const Tensor& x, const Tensor& position_weights, const Tensor& moments);
void batch_norm_apply(const Tensor& x, const Normalization& normalization, const Tensor& y);
/// Writes `sums` without a header, and `masked_dy`; leaves the other outputs to the caller.
void batch_norm_gradient_sums(const GradientSums& arguments);
void batch_norm_apply_grad(const InputGradient& arguments);

/// The memory layout of a dense tensor (N, C, ...). In channels_last it is `outer` rows of C values
/// (`is_rows`); in contiguous it is N x C planes of `inner` values.
struct ActivationLayout {
  std::int64_t outer = 0;  ///< The number of rows, or of samples if not `is_rows`.
  std::int64_t channels = 0;
  std::int64_t inner = 1;  ///< The number of elements of a plane; 1 for rows.
  bool is_rows = true;

  explicit ActivationLayout(const Tensor& x) : channels(x.size(1)) {
    is_rows = x.is_contiguous(MemoryFormat::channels_last);
    if (!is_rows && !x.is_contiguous())
      fail<ShapeError>(
          "batch_norm kernel: expected a dense tensor, contiguous or channels_last, got shape {}, "
          "strides {}",
          to_string(x.shape()), to_string(x.strides()));
    inner = is_rows ? 1 : product(x.shape(), 2, x.rank());
    outer = x.numel() == 0 ? 0 : x.numel() / (channels * inner);
  }
  bool has_short_planes() const { return !is_rows && inner < 512; }
  std::int64_t elements_per_channel() const { return outer * inner; }
  /// Returns the number of neighbouring rows to process as one longer row, so that loops over a row
  /// are long enough to vectorise. It is the smallest power of two for which the longer row has at
  /// least `wide` values and is a whole number of vectors.
  std::int64_t rows_in_group(std::int64_t wide = 256) const {
    std::int64_t rows = 1;
    while (rows * channels < wide || rows * channels % 16 != 0) rows *= 2;
    return rows;
  }
};

/// Copies the numbers of a dense tensor into `values`, converted to A.
template <class A>
void copy_values(const Tensor& t, std::vector<A>& values) {
  dispatch(FloatTypes{}, t.dtype(), "batch_norm", [&]<class T>() {
    std::transform(t.data<T>(), t.data<T>() + values.size(), values.begin(),
                   [](T v) { return static_cast<A>(v); });
  });
}

/// The values of a per-channel parameter, or `absent` for every channel if it is undefined.
template <class A = double>
std::vector<A> channel_values(const Tensor& t, std::int64_t channels, double absent) {
  std::vector<A> values(static_cast<std::size_t>(channels), static_cast<A>(absent));
  if (t.defined()) copy_values(t, values);
  return values;
}

/// Writes the number of every channel, value(c), into a per-channel tensor unless it is undefined.
template <class Value>
void write_channels(const Tensor& to, const Value& value) {
  if (!to.defined()) return;
  dispatch(FloatTypes{}, to.dtype(), "batch_norm", [&]<class T>() {
    for (std::int64_t c = 0; c < to.numel(); ++c) to.data<T>()[c] = static_cast<T>(value(c));
  });
}

/// The position weights, converted to A; empty if they are undefined.
template <class A>
std::vector<A> weight_values(const Tensor& position_weights, const ActivationLayout& layout) {
  const std::int64_t count = position_weights.defined() ? layout.elements_per_channel() : 0;
  std::vector<A> values(static_cast<std::size_t>(count));
  if (count > 0) copy_values(position_weights, values);
  return values;
}

/// Fills the array by repeating its first `channels` values.
template <class A>
void repeat(std::vector<A>& values, std::int64_t channels) {
  for (auto to = values.begin() + channels; to != values.end(); to += channels)
    std::copy_n(values.begin(), channels, to);
}

/// The OutputCoefficients of every channel, repeated for each of the `rows` rows of a group.
template <class A>
struct OutputCoefficientArrays {
  std::vector<A> center, scale, shift;

  OutputCoefficientArrays(const Normalization& n, std::int64_t channels, std::int64_t rows) {
    const double *mean = n.mean.data<double>(), *rstd = n.rstd.data<double>();
    const auto weight = channel_values(n.weight, channels, 1),
               bias = channel_values(n.bias, channels, 0);
    for (auto* values : {&center, &scale, &shift})
      values->resize(static_cast<std::size_t>(channels * rows));
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c) {
      const auto of = output_coefficients<A>(mean[c], rstd[c], weight[c], bias[c]);
      center[c] = of.center;
      scale[c] = of.scale;
      shift[c] = of.shift;
    }
    for (auto* values : {&center, &scale, &shift}) repeat(*values, channels);
  }
};

/// The number of elements that a thread of parallel_backwards processes in ascending order, which
/// prefetchers need, before it steps back to the preceding block.
constexpr std::int64_t elements_in_block = 65536;

/// Calls body(first, last) for blocks that cover [0, n), in parallel. Each thread processes its
/// range in blocks of `block` from the end to the beginning, so that a second pass starts with the
/// data that the first pass has left in the cache.
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

/// One share of a reduction: rows or samples [first, last) of chunk `chunk` and channels
/// [first_channel, last_channel).
struct Tile {
  std::int64_t chunk, first, last, first_channel, last_channel;

  std::int64_t outer() const { return last - first; }
  std::int64_t channels() const { return last_channel - first_channel; }
};

/// Divides a reduction over all elements of each channel into `chunks` of rows (or samples) and
/// `blocks` of channels. The division depends only on the shape, and partial results are merged in
/// order, so that no result depends on the number of threads.
struct Tiles {
  std::int64_t chunks = 1, blocks = 1, grain = 1;

  explicit Tiles(const ActivationLayout& layout) {
    const std::int64_t elements = layout.elements_per_channel() * layout.channels;
    if (layout.is_rows) {
      chunks = std::clamp<std::int64_t>(std::min(layout.outer / 64, elements / 32768), 1, 32);
      if (chunks == 1) blocks = std::clamp<std::int64_t>(layout.channels / 128, 1, 32);
    } else {
      blocks = std::min<std::int64_t>(layout.channels, 32);
      if (blocks < 16) chunks = std::clamp<std::int64_t>(layout.outer, 1, 32 / blocks);
    }
    grain = 16384 * chunks * blocks / std::max<std::int64_t>(elements, 1);
  }

  /// Calls body(tile) for every tile, in parallel.
  template <class Body>
  void run(const ActivationLayout& layout, const Body& body) const {
    const std::int64_t unit = layout.is_rows ? 16 : 1;  // Blocks of a row are whole vectors.
    const auto channel = [&](std::int64_t block) {
      return block == blocks ? layout.channels : layout.channels * block / blocks / unit * unit;
    };
    parallel_for(chunks * blocks, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t chunk = t / blocks, block = t % blocks;
        body(Tile{chunk, layout.outer * chunk / chunks, layout.outer * (chunk + 1) / chunks,
                  channel(block), channel(block + 1)});
      }
    });
  }
};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
