// The convolution kernels (cross-correlation) that every device provides, over one to three spatial
// dimensions. Activations (N, C, ...) and weights (O, I/groups, ...) are contiguous or
// channels_last, and results are written in the layout that the caller allocated. The caller checks
// the shapes (nn/functional/conv.h does).
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

/// The options of a convolution, with one number for each spatial dimension. nn::convolution also
/// takes a single number for all of them.
struct ConvOptions {
  Dims stride = {1};
  Dims padding = {0};
  Dims dilation = {1};
  std::int64_t groups = 1;
};

/// The table of a device's convolution kernels. x has shape (N, I, ...), w (O, I/groups, ...), y
/// (N, O, ...) and bias (O) unless it is undefined. The batch may be empty. With 16-bit
/// activations, w, bias, dw and db have their dtype or float32, and sums are taken in float32.
/// Otherwise all tensors have one dtype.
struct Convolution {
  void (*forward)(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions&,
                  const Tensor& y);
  void (*backward_input)(const Tensor& dy, const Tensor& w, const ConvOptions&, const Tensor& dx);
  /// `db` may be undefined.
  void (*backward_weight)(const Tensor& x, const Tensor& dy, const ConvOptions&, const Tensor& dw,
                          const Tensor& db);
  /// From now on `forward` may keep copies of `w` in layouts that it prefers, beside the storage of
  /// w. It makes them anew after a change in place that bumps the version of the storage; other
  /// changes must not happen. Nothing else may use the storage during this call.
  void (*keep_packed)(const Tensor& w);
};

}  // namespace tutti::kernels
