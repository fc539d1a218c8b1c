// Winograd's convolution: 3x3 kernels with stride 1 need 36 multiplications for 4x4 outputs instead
// of 144. The convolution becomes 36 matrix products, which oneDNN computes, between transforms of
// the input, the weight and the output, which are compiled for each level of processors. All of it
// is float32, also between tensors of bfloat16.
//
// Rounding errors are 2 to 10 times those of the direct sum in float32: 0.5 to 2 millionths of the
// outputs' root mean square. They are shared within a tile: beside an input that is a million times
// the others, outputs whose windows do not contain it lose their digits too. A value that is not
// finite would spread over its tile, so the functions then give up, and the caller computes the
// direct sum.
#pragma once

#include "../options.h"

namespace tutti::kernels::cpu {

// The transforms convert between tensors and planes. Plane p of 36 holds the p-th element of every
// transformed tile: a matrix with one row for each tile, or a matrix over two kinds of channels.

/// A dense channels_last tensor (N, C, H, W) of float32 or bfloat16 whose images are cut into tiles
/// of 4x4 outputs of a convolution. Tile (i, j) begins `padding` rows above row 4i and columns left
/// of column 4j. With a dilation d each image is seen as d * d images, of every d-th row and
/// column, and `padding` counts rows of these.
struct TiledTensor {
  void* data;
  DType dtype;
  std::int64_t height, width, channels;
  std::int64_t tile_rows, tile_columns;  ///< The numbers of tiles of an image.
  std::int64_t padding, dilation;
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

/// The matrices are those of Winograd's F(4x4, 3x3) with the points 0, +-5/8, +-3/2, by the
/// construction of Toom and Cook (Lavin and Gray 2016 describe the algorithm for convolutions;
/// Barabasz et al., "Error analysis and improving the accuracy of Winograd convolution", 2018, how
/// points decide the error). Channels must be multiples of 16. Transformed elements are float32.
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

namespace winograd {

/// Returns whether the functions below take this convolution and are faster than the direct sum:
/// dense channels_last images of float32 or bfloat16, kernels of 3x3 without stride or groups, a
/// padding that is a multiple of the dilation, channels in multiples of 16, and enough of them. `x`
/// and `y` stand for their gradients, too.
bool is_faster(const Tensor& x, const Tensor& w, const Tensor& y, const ConvOptions& options);

// These compute what the entries of the same names in kernels::Convolution compute, for tensors
// that can_convolve() takes. They return false, and may have written to the result, if an element
// of it is not finite or if oneDNN is absent.

bool can_convolve(const Tensor& x, const Tensor& w, const Tensor& y, const ConvOptions& options);
bool forward(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& options,
             const Tensor& y);
bool backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                    const Tensor& dx);
/// Leaves out the gradient of the bias.
bool backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                     const Tensor& dw);

}  // namespace winograd
}  // namespace tutti::kernels::cpu
