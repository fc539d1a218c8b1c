// Spatial dimensions on the CPU: one and two of them are treated as three, with sizes of 1, so that
// the loops of pooling and of the reference convolution are written once.
#pragma once

#include "../../core/tensor.h"

#include <array>

namespace tutti::kernels::cpu {

/// One number for each of the dimensions D, H, W.
using SpatialDims = std::array<std::int64_t, 3>;

/// The entries of `dims` after the first `skip`, with `filler` for the spatial dimensions that are
/// missing in front.
inline SpatialDims spatial_dims(const Dims& dims, int skip, std::int64_t filler) {
  SpatialDims result{filler, filler, filler};
  for (int i = skip; i < dims.size(); ++i)
    result[static_cast<std::size_t>(3 - dims.size() + i)] = dims[i];
  return result;
}

/// A tensor (N, C, D, H, W), or a weight (O, I, D, H, W), addressed by its strides.
template <class T>
struct SpatialView {
  T* data;
  std::int64_t batch_stride, channel_stride;
  SpatialDims size, stride;

  explicit SpatialView(const Tensor& t)
      : data(t.data<T>()),
        batch_stride(t.strides()[0]),
        channel_stride(t.strides()[1]),
        size(spatial_dims(t.shape(), 2, 1)),
        stride(spatial_dims(t.strides(), 2, 0)) {}
  /// The same tensor, seen from (n, c) on.
  SpatialView(const Tensor& t, std::int64_t n, std::int64_t c) : SpatialView(t) {
    data += n * batch_stride + c * channel_stride;
  }
  /// The element at `p` of the first channel.
  T* at(const SpatialDims& p) const {
    return data + p[0] * stride[0] + p[1] * stride[1] + p[2] * stride[2];
  }
  T& at(std::int64_t n, std::int64_t c, const SpatialDims& p) const {
    return at(p)[n * batch_stride + c * channel_stride];
  }
};

}  // namespace tutti::kernels::cpu
