// The transforms of Winograd's convolution (winograd.h), compiled for each level of processors.
// They convert between tensors and planes. Plane p of 36 holds the p-th element of every
// transformed tile: a matrix with one row for each tile, or a matrix over two kinds of channels.
#pragma once

#include "../../core/tensor.h"

namespace tutti::kernels::cpu {

/// A dense channels_last tensor (N, C, H, W) of float32 or bfloat16 whose images are cut into tiles
/// of 4x4 outputs of a convolution. Tile (i, j) begins `padding` rows above row 4i and columns left
/// of column 4j.
struct TiledTensor {
  void* data;
  DType dtype;
  std::int64_t height, width, channels;
  std::int64_t tile_rows, tile_columns;  ///< The numbers of tiles of an image.
  std::int64_t padding;
};

/// The tiles [first, first + count) of a tensor in planes: row t - first of plane p begins at
/// data + p * stride + (t - first) * channels.
struct TilePlanes {
  float* data;
  std::int64_t stride, first, count;
};

/// The 3x3 kernels of a weight, as a matrix of kernels over its two kinds of channels: element
/// (i, j) of kernel (r, c) is at data[r * row + c * column + i * kernel_row + j * kernel_column].
/// Strides, in elements, may be negative. The dtype is float32 or bfloat16.
struct KernelView {
  void* data;
  DType dtype;
  std::int64_t rows, columns;
  std::int64_t row, column, kernel_row, kernel_column;
};

/// The transformed kernels: element (r, c) of plane p is at data[p * stride + r * columns + c].
struct KernelPlanes {
  float* data;
  std::int64_t stride;
};

/// The matrices are those of Winograd's F(4x4, 3x3) with the points 0, 1, -1, 1/2, -2, by the
/// construction of Toom and Cook (Lavin and Gray 2016 describe the algorithm for convolutions).
/// With these points the error in float32 is about half of that with 0, 1, -1, 2, -2. Channels must
/// be multiples of 16. Transformed elements are float32.
struct WinogradTransforms {
  /// Transforms tiles of 6x6 inputs, with zeros in the padding.
  void (*input)(const TiledTensor& x, const TilePlanes& to);
  /// Transforms tiles of 4x4 gradients of outputs.
  void (*output_gradient)(const TiledTensor& dy, const TilePlanes& to);
  void (*weight)(const KernelView& w, const KernelPlanes& to);
  /// Writes the outputs of transformed tiles, plus `bias` unless it is null. Returns whether all of
  /// them are finite.
  bool (*output)(const TilePlanes& from, const float* bias, const TiledTensor& y);
  /// Writes the gradient of the kernels from that of the transformed ones. Returns whether all
  /// elements are finite.
  bool (*weight_gradient)(const KernelPlanes& from, const KernelView& dw);
  /// Adds `count` elements.
  void (*add)(const float* from, float* to, std::int64_t count);
};

}  // namespace tutti::kernels::cpu
