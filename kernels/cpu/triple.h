// Spatial dimensions on the CPU: one and two of them are three with sizes of 1, so that plain loops
// are written once. For pooling and the reference convolution.
#pragma once

#include "../../core/tensor.h"

#include <array>

namespace tutti::kernels::cpu {

using Triple = std::array<std::int64_t, 3>;

/// The entries of `dims` after the first `skip`, at the end, with `filler` for the spatial
/// dimensions that are missing.
inline Triple triple(const Dims& dims, int skip, std::int64_t filler) {
  Triple result{filler, filler, filler};
  for (int i = skip; i < dims.size(); ++i)
    result[static_cast<std::size_t>(3 - dims.size() + i)] = dims[i];
  return result;
}

/// A tensor (N, C, D, H, W) of T addressed by its strides; a weight (O, I, D, H, W) likewise.
template <class T>
struct Volumes {
  T* data;
  std::int64_t batch, channel;  ///< strides
  Triple size, step;            ///< sizes and strides of D, H, W

  explicit Volumes(const Tensor& t)
      : data(t.data<T>()),
        batch(t.strides()[0]),
        channel(t.strides()[1]),
        size(triple(t.shape(), 2, 1)),
        step(triple(t.strides(), 2, 0)) {}
  T& at(std::int64_t n, std::int64_t c, const Triple& p) const {
    return data[n * batch + c * channel + p[0] * step[0] + p[1] * step[1] + p[2] * step[2]];
  }
  /// Makes (n, c) the first volume, which the other `at` looks into.
  void move_to(std::int64_t n, std::int64_t c) { data += n * batch + c * channel; }
  T* at(std::int64_t d, std::int64_t h, std::int64_t w) const {
    return data + d * step[0] + h * step[1] + w * step[2];
  }
};

}  // namespace tutti::kernels::cpu
