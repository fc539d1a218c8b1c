// A transform multiplies a tile by the same matrix from both sides; the vectors hold adjacent
// channels. The matrices are written as sums of even and odd parts, which the points +p and -p
// share.
#include "winograd.h"

#include "../../core/parallel.h"
#include "vector.h"

#include <algorithm>
#include <atomic>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

using Floats = Vector<float>;
using V = Floats::V;
constexpr std::int64_t width = Floats::width;
constexpr int tile_outputs = 4;  // The edge of a tile of outputs.

// The points 0, +-p, +-q and infinity. These p and q have the least error of all that a search in
// sixteenths found, and all powers of them that the matrices contain are exact in float32.
struct Points {
  static constexpr float p = 0.625f, q = 1.5f, pp = p * p, qq = q * q;
  // 1 over the product of the differences between 0, p or q and the other points.
  static constexpr float at_0 = 1 / (pp * qq), at_p = 1 / (2 * pp * (pp - qq)),
                         at_q = 1 / (2 * qq * (qq - pp));
};

struct InputTransform : Points {
  static constexpr int from = 6, to = 6;
  [[gnu::always_inline]] static void apply(const V (&x)[6], V (&t)[6]) {
    const V even_p = x[4] - qq * x[2], odd_p = p * (x[3] - qq * x[1]);
    const V even_q = x[4] - pp * x[2], odd_q = q * (x[3] - pp * x[1]);
    t[0] = x[4] - (pp + qq) * x[2] + pp * qq * x[0];
    t[1] = even_p + odd_p;
    t[2] = even_p - odd_p;
    t[3] = even_q + odd_q;
    t[4] = even_q - odd_q;
    t[5] = x[5] - (pp + qq) * x[3] + pp * qq * x[1];
  }
};

struct OutputTransform : Points {
  static constexpr int from = 6, to = 4;
  [[gnu::always_inline]] static void apply(const V (&t)[6], V (&y)[4]) {
    const V even_p = t[1] + t[2], odd_p = p * (t[1] - t[2]);
    const V even_q = t[3] + t[4], odd_q = q * (t[3] - t[4]);
    y[0] = t[0] + even_p + even_q;
    y[1] = odd_p + odd_q;
    y[2] = pp * even_p + qq * even_q;
    y[3] = pp * odd_p + qq * odd_q + t[5];
  }
};

// The transpose of OutputTransform.
struct OutputGradientTransform : Points {
  static constexpr int from = 4, to = 6;
  [[gnu::always_inline]] static void apply(const V (&y)[4], V (&t)[6]) {
    const V even_p = y[0] + pp * y[2], odd_p = p * (y[1] + pp * y[3]);
    const V even_q = y[0] + qq * y[2], odd_q = q * (y[1] + qq * y[3]);
    t[0] = y[0];
    t[1] = even_p + odd_p;
    t[2] = even_p - odd_p;
    t[3] = even_q + odd_q;
    t[4] = even_q - odd_q;
    t[5] = y[3];
  }
};

struct WeightTransform : Points {
  static constexpr int from = 3, to = 6;
  [[gnu::always_inline]] static void apply(const V (&g)[3], V (&t)[6]) {
    const V even_p = g[0] + pp * g[2], odd_p = p * g[1];
    const V even_q = g[0] + qq * g[2], odd_q = q * g[1];
    t[0] = at_0 * g[0];
    t[1] = at_p * (even_p + odd_p);
    t[2] = at_p * (even_p - odd_p);
    t[3] = at_q * (even_q + odd_q);
    t[4] = at_q * (even_q - odd_q);
    t[5] = g[2];
  }
};

// The transpose of WeightTransform.
struct WeightGradientTransform : Points {
  static constexpr int from = 6, to = 3;
  [[gnu::always_inline]] static void apply(const V (&t)[6], V (&g)[3]) {
    const V even_p = at_p * (t[1] + t[2]), even_q = at_q * (t[3] + t[4]);
    g[0] = at_0 * t[0] + even_p + even_q;
    g[1] = p * at_p * (t[1] - t[2]) + q * at_q * (t[3] - t[4]);
    g[2] = pp * even_p + qq * even_q + t[5];
  }
};

// Transforms a matrix of vectors along its columns, then along its rows. `load(i, j)` returns an
// element, `store(i, j, v)` takes one of the result.
template <class Transform, class Load, class Store>
[[gnu::always_inline]] inline void transform_tile(const Load& load, const Store& store) {
  constexpr int from = Transform::from, to = Transform::to;
  V half[to][from];
  for (int j = 0; j < from; ++j) {
    V column[from], result[to];
    for (int i = 0; i < from; ++i) column[i] = load(i, j);
    Transform::apply(column, result);
    for (int i = 0; i < to; ++i) half[i][j] = result[i];
  }
  for (int i = 0; i < to; ++i) {
    V result[to];
    Transform::apply(half[i], result);
    for (int j = 0; j < to; ++j) store(i, j, result[j]);
  }
}

// Calls body.operator()<T>() for the type of the elements.
template <class Body>
auto with_type(DType dtype, const Body& body) {
  return dtype == bfloat16 ? body.template operator()<BFloat16>()
                           : body.template operator()<float>();
}

// A tile in memory: element (i, j) is `row` and `column` steps from `corner`, and exists where i
// and j are in the ranges. The others lie in the padding or beyond the image.
template <class T>
struct Tile {
  T* corner;
  std::int64_t row, column;
  int row_begin, row_end, column_begin, column_end;

  bool is_whole(int edge) const {
    return row_begin == 0 && column_begin == 0 && row_end == edge && column_end == edge;
  }
  bool has(int i, int j) const {
    return i >= row_begin && i < row_end && j >= column_begin && j < column_end;
  }
  T* at(int i, int j) const { return corner + i * row + j * column; }
};

template <class T>
Tile<T> tile_at(const TiledTensor& x, std::int64_t index, int edge) {
  const std::int64_t d = x.dilation, per_image = x.tile_rows * x.tile_columns,
                     image = index / per_image / (d * d), phase = index / per_image % (d * d),
                     first_row = phase / d, first_column = phase % d,
                     i = index % per_image / x.tile_columns * tile_outputs - x.padding,
                     j = index % x.tile_columns * tile_outputs - x.padding;
  const auto within = [edge](std::int64_t size) {
    return static_cast<int>(std::clamp<std::int64_t>(size, 0, edge));
  };
  const std::int64_t row = image * x.height + first_row + d * i, column = first_column + d * j;
  return {.corner = static_cast<T*>(x.data) + (row * x.width + column) * x.channels,
          .row = d * x.width * x.channels,
          .column = d * x.channels,
          .row_begin = within(-i),
          .row_end = within((x.height - first_row + d - 1) / d - i),
          .column_begin = within(-j),
          .column_end = within((x.width - first_column + d - 1) / d - j)};
}

// Transforms the channels of one tile; element p of the result goes to to + p * stride.
template <class Transform, bool is_whole, class T>
void to_planes(const Tile<T>& tile, std::int64_t channels, float* to, std::int64_t stride) {
  for (std::int64_t c = 0; c < channels; c += width)
    transform_tile<Transform>(
        [&](int i, int j) {
          return is_whole || tile.has(i, j) ? Vector<T>::load(tile.at(i, j) + c) : V{};
        },
        [&](int i, int j, const V& v) {
          Floats::put(to + (i * Transform::to + j) * stride + c, v);
        });
}

template <class Transform>
void tiles_to_planes(const TiledTensor& x, const TilePlanes& to) {
  with_type(x.dtype, [&]<class T>() {
    parallel_for(to.count, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const auto tile = tile_at<T>(x, to.first + t, Transform::from);
        float* const first = to.data + t * x.channels;
        if (tile.is_whole(Transform::from))
          to_planes<Transform, true>(tile, x.channels, first, to.stride);
        else to_planes<Transform, false>(tile, x.channels, first, to.stride);
      }
    });
  });
}

bool is_zero(const V& v) {
  float elements[width];
  Floats::put(elements, v);
  return std::all_of(elements, elements + width, [](float each) { return each == 0; });
}

// Returns whether all outputs of the tile are finite.
template <class T>
bool write_outputs(const float* from, std::int64_t stride, const float* bias, const Tile<T>& tile,
                   std::int64_t channels) {
  V check = {};  // becomes NaN with the first value that is not finite
  for (std::int64_t c = 0; c < channels; c += width) {
    const V added = bias ? Floats::get(bias + c) : V{};
    transform_tile<OutputTransform>(
        [&](int i, int j) {
          return Floats::get(from + (i * OutputTransform::from + j) * stride + c);
        },
        [&](int i, int j, const V& v) {
          if (!tile.has(i, j)) return;
          check += v - v;
          Vector<T>::store(tile.at(i, j) + c, v + added);
        });
  }
  return is_zero(check);
}

bool output(const TilePlanes& from, const float* bias, const TiledTensor& y) {
  std::atomic<bool> are_finite = true;
  with_type(y.dtype, [&]<class T>() {
    parallel_for(from.count, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const auto tile = tile_at<T>(y, from.first + t, tile_outputs);
        if (!write_outputs(from.data + t * y.channels, from.stride, bias, tile, y.channels))
          are_finite = false;
      }
    });
  });
  return are_finite;
}

// A vector of elements that are `step` apart, which is 1 for input channels in channels_last.
template <class T>
V gather(const T* from, std::int64_t step) {
  if (step == 1) return Vector<T>::load(from);
  float elements[width];
  for (std::int64_t l = 0; l < width; ++l) elements[l] = static_cast<float>(from[l * step]);
  return Floats::get(elements);
}

template <class T>
void scatter(const V& v, T* to, std::int64_t step) {
  if (step == 1) return Vector<T>::store(to, v);
  float elements[width];
  Floats::put(elements, v);
  for (std::int64_t l = 0; l < width; ++l) to[l * step] = T(elements[l]);
}

// Calls body(r, c) for the kernels of `w`, a vector of columns at a time. Rows come innermost, so
// that the lines of memory from which elements are gathered are still in the cache for the next
// row.
template <class Body>
void for_each_kernel(const KernelView& w, const Body& body) {
  parallel_for(w.columns / width, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin * width; c < end * width; c += width)
      for (std::int64_t r = 0; r < w.rows; ++r) body(r, c);
  });
}

template <class T>
T* element(const KernelView& w, std::int64_t r, std::int64_t c, int i, int j) {
  return static_cast<T*>(w.data) + r * w.row + c * w.column + i * w.kernel_row +
         j * w.kernel_column;
}

void weight(const KernelView& w, const KernelPlanes& to) {
  constexpr int edge = WeightTransform::to;
  with_type(w.dtype, [&]<class T>() {
    for_each_kernel(w, [&](std::int64_t r, std::int64_t c) {
      transform_tile<WeightTransform>(
          [&](int i, int j) { return gather(element<T>(w, r, c, i, j), w.column); },
          [&](int i, int j, const V& v) {
            Floats::put(to.data + (i * edge + j) * to.stride + r * w.columns + c, v);
          });
    });
  });
}

bool weight_gradient(const KernelPlanes& from, const KernelView& dw) {
  constexpr int edge = WeightGradientTransform::from;
  std::atomic<bool> are_finite = true;
  with_type(dw.dtype, [&]<class T>() {
    for_each_kernel(dw, [&](std::int64_t r, std::int64_t c) {
      V check = {};
      transform_tile<WeightGradientTransform>(
          [&](int i, int j) {
            return Floats::get(from.data + (i * edge + j) * from.stride + r * dw.columns + c);
          },
          [&](int i, int j, const V& v) {
            check += v - v;
            scatter(v, element<T>(dw, r, c, i, j), dw.column);
          });
      if (!is_zero(check)) are_finite = false;
    });
  });
  return are_finite;
}

void add(const float* from, float* to, std::int64_t count) {
  parallel_for(count, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to[i] += from[i];
  });
}

}  // namespace

const WinogradTransforms& winograd_transforms() {
  static constexpr WinogradTransforms table{
      .input = tiles_to_planes<InputTransform>,
      .output_gradient = tiles_to_planes<OutputGradientTransform>,
      .weight = weight,
      .output = output,
      .weight_gradient = weight_gradient,
      .add = add};
  return table;
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
