// The windows of pooling in one spatial dimension: the input positions that an output reads, and
// the outputs that read an input position, written once for the CPU (64-bit positions) and for CUDA
// kernels (32-bit).
#pragma once

#include "../core/host_device.h"

#include <cstdint>

namespace tutti::kernels {

/// Positions [begin, end) of one dimension. The range is empty where end <= begin.
template <class I>
struct PositionRange {
  I begin, end;
};

/// One spatial dimension of a pooling with a kernel.
template <class I>
struct PoolDimension {
  I in = 1, out = 1;  ///< sizes
  I kernel = 1, stride = 1, padding = 0;

  /// Returns the position at which the window of output o starts; negative if that is padding.
  TUTTI_HOST_DEVICE I origin(I o) const { return o * stride - padding; }
  /// Returns the input positions that output o reads.
  TUTTI_HOST_DEVICE PositionRange<I> window(I o) const {
    const I first = origin(o), last = first + kernel;
    return {first > 0 ? first : I(0), last < in ? last : in};
  }
  /// Returns the factor of this dimension in the divisor of output o's average: the size of its
  /// window in the input or, with `count_padding`, in the input and its padding.
  TUTTI_HOST_DEVICE I divisor(I o, bool count_padding) const {
    const PositionRange<I> inside = window(o);
    if (!count_padding) return inside.end - inside.begin;
    const I first = origin(o), last = first + kernel;
    return (last < in + padding ? last : in + padding) - first;
  }
  /// Returns the outputs that read input position i.
  TUTTI_HOST_DEVICE PositionRange<I> outputs(I i) const {
    const I last = i + padding, first = last - kernel + 1, end = last / stride + 1;
    return {first <= 0 ? I(0) : (first + stride - 1) / stride, end < out ? end : out};
  }
};

/// Returns the input positions that output o of an adaptive pooling reads: floor(o in / out) up to
/// ceil((o + 1) in / out). With `in` and `out` exchanged, it returns the outputs that read input
/// position o.
template <class I>
TUTTI_HOST_DEVICE inline PositionRange<I> adaptive_window(I o, std::int64_t in, std::int64_t out) {
  return {static_cast<I>(o * in / out), static_cast<I>(((o + 1) * in + out - 1) / out)};
}

}  // namespace tutti::kernels
