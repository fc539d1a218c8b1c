// This file says how batch-norm kernels divide a tensor among blocks and threads, and in which
// order a thread visits its vectors. Per-channel numbers are in batch_norm_channels.h, sums over
// threads and blocks in batch_norm_reduction.h.
//
// A vector is V neighbouring elements. A channels_last tensor is `outer` rows of C values: each
// thread handles V channels and iterates over rows. A contiguous tensor is N x C planes: each block
// handles one channel, and its threads iterate over the vectors of that channel's planes. If a
// plane does not start at a multiple of V elements, its first and last vectors are only partly
// inside the plane. If a tensor or a row does not start at a multiple of 16 bytes (not `aligned`),
// the order is the same, but elements are loaded one by one.
//
// The mask of a ReLU has one byte for each vector, row by row or plane by plane. Bit v of a byte
// says whether the ReLU passed lane v. Each byte is therefore written by a single thread, whatever
// the shape.
#pragma once

#include "../../core/cuda/launch.h"
#include "../../core/cuda/runtime.h"
#include "../../core/cuda/stream.h"
#include "../batch_norm_math.h"
#include "vector.h"

#include <algorithm>

namespace tutti::kernels::cuda {

constexpr int row_threads = 512, plane_threads = 256;
template <bool rows>
constexpr int threads_of = rows ? row_threads : plane_threads;
// The largest number of vectors of a row that one block handles.
constexpr int widest_tile = 32;

/// How a launch divides a tensor among blocks and threads.
struct Geometry {
  std::int64_t outer = 0, channels = 0, inner = 1;
  /// The number of vectors in a row or plane.
  std::int64_t vectors = 1;
  /// The threads of a block form `down` rows of `across` vectors. In planes `across` is 1.
  int across = 1, down = 1;
  /// The launch has tiles x chunks blocks. A tile is a range of columns (in planes, one channel); a
  /// chunk is a share of the rows (in planes, of the channel's vectors).
  int tiles = 1, chunks = 1;
};

// ---- Iterators over the vectors of one thread, in ascending or descending order.

template <int V, bool aligned = true>
struct RowIterator {
  std::int64_t channels, vectors, channel, row, at, count, row_step, step;

  /// Iterates over the rows of share `chunk` of `chunks`, starting with the last row if
  /// `backwards`.
  __device__ RowIterator(const Geometry& g, int tile, int chunk, int chunks, bool backwards)
      : channels(g.channels), vectors(g.vectors) {
    const int x = static_cast<int>(threadIdx.x) % g.across,
              y = static_cast<int>(threadIdx.x) / g.across;
    channel = (static_cast<std::int64_t>(tile) * g.across + x) * V;
    row = static_cast<std::int64_t>(chunk) * g.down + y;
    row_step = static_cast<std::int64_t>(chunks) * g.down;
    const bool any = y < g.down && row < g.outer;
    count = channel < g.channels && any ? (g.outer - 1 - row) / row_step + 1 : 0;
    if (backwards && count > 0) row += (count - 1) * row_step;
    if (backwards) row_step = -row_step;
    at = row * channels + channel;
    step = row_step * channels;
  }
  __device__ Span span() const {
    if constexpr (aligned) return {at, 0, V};
    return {at, 0, static_cast<int>(min(channels - channel, std::int64_t{V})),
            row * vectors + channel / V};
  }
  /// Returns the index of the mask byte of vector `s`. If aligned, the index is computed here
  /// instead of stored in the Span, which saves registers.
  __device__ static std::int64_t byte(const Span& s) {
    return aligned ? static_cast<std::int64_t>(static_cast<std::uint64_t>(s.at) / V) : s.vector;
  }
  __device__ std::int64_t position(const Span&) const { return row; }
  __device__ void next() { row += row_step, at += step; }
};

template <int V>
struct PlaneIterator {
  std::int64_t channels, channel, count, sample, piece, vectors, sample_step, piece_step, inner,
      plane, sample_size;
  bool backwards;

  __device__ PlaneIterator(const Geometry& g, int tile, int chunk, int chunks, bool from_end)
      : channels(g.channels), vectors(g.vectors), inner(g.inner), backwards(from_end) {
    channel = from_end ? g.channels - 1 - tile : tile;
    const std::int64_t step = static_cast<std::int64_t>(chunks) * blockDim.x,
                       total = g.outer * vectors;
    std::int64_t first = static_cast<std::int64_t>(chunk) * blockDim.x + threadIdx.x;
    count = first < total ? (total - 1 - first) / step + 1 : 0;
    if (backwards && count > 0) first += (count - 1) * step;
    sample = first / vectors, piece = first % vectors;
    sample_step = step / vectors, piece_step = step % vectors;
    plane = channel * inner, sample_size = g.channels * inner;
  }
  __device__ Span span() const {
    const std::int64_t begin = sample * sample_size + plane, at = begin / V * V + piece * V;
    const std::int64_t before = begin - at, after = begin + inner - at;
    return {at, before > 0 ? static_cast<int>(before) : 0,
            after < V ? (after > 0 ? static_cast<int>(after) : 0) : V,
            (sample * channels + channel) * vectors + piece};
  }
  __device__ static std::int64_t byte(const Span& s) { return s.vector; }
  /// Returns the index of lane 0 among the positions (N, ...), which exclude the channel dimension.
  /// It is the index into the position weights.
  __device__ std::int64_t position(const Span& s) const {
    return s.at - plane - sample * (sample_size - inner);
  }
  __device__ void next() {
    if (backwards) {
      sample -= sample_step, piece -= piece_step;
      if (piece < 0) piece += vectors, --sample;
    } else {
      sample += sample_step, piece += piece_step;
      if (piece >= vectors) piece -= vectors, ++sample;
    }
  }
};

template <int V, bool rows, bool aligned>
using VectorIterator = std::conditional_t<rows, RowIterator<V, aligned>, PlaneIterator<V>>;

/// Returns the mask byte of a vector of the output: bit v is set where lane v is above 0 or NaN.
template <class T, int V>
__device__ std::uint8_t mask_byte(const Pack<T, V>& output, const Span& s) {
  unsigned bits = 0;
#pragma unroll
  for (int v = 0; v < V; ++v) bits |= (output[v] <= 0 ? 0u : 1u) << v;
  return static_cast<std::uint8_t>(bits & ((1u << s.last) - (1u << s.first)));
}

/// The number of vectors that a thread loads from each of `streams` tensors before it uses the
/// first one. With vectors of 16 bytes and 512 threads on a multiprocessor, at least 48 KB are in
/// flight. The number is 1 if not `aligned`, because one vector is then already many loads.
template <int streams, bool aligned = true>
constexpr int batch_of = !aligned       ? 1
                         : streams == 1 ? 6
                         : streams == 2 ? 4
                                        : 2;

/// Returns the first channel of the calling block. In planes this is `own`, the calling thread's
/// channel, which all threads of the block share.
template <int V, bool rows>
__device__ std::int64_t first_channel(const Geometry& g, std::int64_t own) {
  return rows ? static_cast<std::int64_t>(blockIdx.x) * g.across * V : own;
}

// ---- Host side.

/// Returns the number of blocks among which the work of a tile is divided. It is as large as fits
/// on the device at one time, but every thread has at least `batch` of the `steps` vectors to load.
inline int share_of(Device device, int tiles, std::int64_t steps, int batch,
                    int per_multiprocessor) {
  const std::int64_t room = std::int64_t{tutti::cuda::properties(device.index()).multiprocessors} *
                            per_multiprocessor;
  return static_cast<int>(std::clamp<std::int64_t>(room / std::max(1, tiles), 1,
                                                   std::max<std::int64_t>(1, steps / batch)));
}

/// Returns the bytes of shared memory that hold `fields` numbers for each channel of a block.
template <class T, bool rows>
std::size_t shared_bytes(const Geometry& g, int fields) {
  return sizeof(Accumulate<T>) *
         static_cast<std::size_t>(fields * g.across * (rows ? full_width<T> : 1));
}

/// Returns how a launch divides `rows` rows of `channels` values, if threads load `batch` vectors
/// at a time and `per_multiprocessor` blocks run on a multiprocessor at a time. The result depends
/// only on the shape and the device.
template <int V>
Geometry cut_rows(Device device, std::int64_t rows, std::int64_t channels, int batch,
                  int per_multiprocessor) {
  Geometry g;
  g.outer = rows;
  g.channels = channels;
  g.vectors = std::max<std::int64_t>(1, (channels + V - 1) / V);
  g.tiles = static_cast<int>((g.vectors + widest_tile - 1) / widest_tile);
  g.across = static_cast<int>((g.vectors + g.tiles - 1) / g.tiles);
  g.down = row_threads / g.across;
  g.chunks = share_of(device, g.tiles, (rows + g.down - 1) / g.down, batch, per_multiprocessor);
  return g;
}

/// Returns how a launch divides x: as cut_rows does if `rows`, else as planes.
template <int V>
Geometry cut(const Tensor& x, bool rows, int batch, int per_multiprocessor) {
  const std::int64_t channels = x.size(1);
  if (rows)
    return cut_rows<V>(x.device(), x.numel() / std::max<std::int64_t>(1, channels), channels, batch,
                       per_multiprocessor);
  Geometry g;
  g.channels = channels;
  g.inner = product(x.shape(), 2, x.rank());
  g.outer = x.numel() == 0 ? 0 : x.size(0);
  g.vectors = std::max<std::int64_t>(1, g.inner % V == 0 ? g.inner / V : (g.inner + 2 * V - 2) / V);
  g.tiles = static_cast<int>(channels);
  g.down = plane_threads;
  g.chunks = share_of(x.device(), g.tiles, (g.outer * g.vectors + g.down - 1) / g.down, batch,
                      per_multiprocessor);
  return g;
}

/// Returns whether x is visited as rows (channels_last) instead of planes (contiguous). A tensor
/// with a single channel counts as planes in either format. Throws ShapeError if x is not dense.
inline bool is_rows(const Tensor& x) {
  if (x.size(1) > 1 && x.is_contiguous(MemoryFormat::channels_last)) return true;
  if (!x.is_contiguous())
    fail<ShapeError>(
        "batch_norm kernel: expected a dense tensor, contiguous or channels_last, got shape {}, "
        "strides {}",
        to_string(x.shape()), to_string(x.strides()));
  return false;
}

inline std::uint8_t* mask_of(const Normalization& n) {
  return n.mask.defined() ? n.mask.data<std::uint8_t>() : nullptr;
}

/// Calls body.operator()<T, rows, aligned>(), where T is CUDA's type for the elements of x.
/// `aligned` is true if x and `others` begin at multiples of 16 bytes and, in channels_last, every
/// row does, too.
template <class Body>
void with_layout(const Tensor& x, std::initializer_list<Tensor> others, const Body& body) {
  const bool rows = is_rows(x),
             aligned = is_aligned(x) && std::all_of(others.begin(), others.end(), is_aligned);
  dispatch(TrainTypes{}, x.dtype(), "batch_norm", [&]<class H>() {
    using T = DeviceType<H>;
    if (!aligned || (rows && x.size(1) % full_width<T> != 0)) {
      rows ? body.template operator()<T, true, false>()
           : body.template operator()<T, false, false>();
    } else {
      rows ? body.template operator()<T, true, true>() : body.template operator()<T, false, true>();
    }
  });
}

inline dim3 blocks_of(const Geometry& g) {
  return dim3(static_cast<unsigned>(g.tiles), static_cast<unsigned>(g.chunks));
}

}  // namespace tutti::kernels::cuda
