// The positions of interpolation in one spatial dimension, written once for the CPU and for CUDA
// kernels: the input positions that an output reads with their weights, and the outputs that read
// an input position. The formulas are PyTorch's.
#pragma once

#include "../core/host_device.h"
#include "../core/tensor.h"
#include "options.h"
#include "pooling_windows.h"

namespace tutti::kernels {

/// One or two input positions that an output reads: `first` with weight 1 - share and, unless it is
/// equal, `second` with weight `share`.
template <class A>
struct InterpolationTaps {
  std::int64_t first, second;
  A share;

  TUTTI_HOST_DEVICE A weight_of(std::int64_t position) const {
    return position == first ? 1 - share : position == second ? share : A(0);
  }
};

/// One spatial dimension of an interpolation. Positions are computed in A, which is the type that
/// the elements are computed in; those of the nearest element always in float32.
template <class A>
struct InterpolatedDimension {
  std::int64_t in = 1, out = 1;
  A scale = 1;
  bool linear = false, align_corners = false;

  InterpolatedDimension() = default;
  /// Dimension `d` of D, H, W in the interpolation from x to y; those that are missing in front
  /// stay as they are.
  InterpolatedDimension(const Tensor& x, const Tensor& y, const InterpolationOptions& options,
                        int d) {
    const int own = d - 5 + x.rank();  // among the dimensions that there are
    if (own < 0) return;
    in = x.size(own + 2);
    out = y.size(own + 2);
    linear = options.linear;
    align_corners = options.align_corners;
    if (linear && in == out) scale = 1;  // a copy, whatever the factor
    else if (align_corners)
      scale = out > 1 ? static_cast<A>(in - 1) / static_cast<A>(out - 1) : A(0);
    else if (options.factors.empty()) scale = static_cast<A>(in) / static_cast<A>(out);
    else scale = static_cast<A>(1 / options.factors[static_cast<std::size_t>(own)]);
  }

  /// Returns the input positions that output o reads.
  TUTTI_HOST_DEVICE InterpolationTaps<A> taps(std::int64_t o) const {
    if (!linear) {
      const auto at = static_cast<std::int64_t>(static_cast<float>(o) * static_cast<float>(scale));
      const std::int64_t nearest = at < in ? at : in - 1;
      return {nearest, nearest, A(0)};
    }
    A at = align_corners ? scale * static_cast<A>(o)
                         : scale * (static_cast<A>(o) + A(0.5)) - A(0.5);
    if (at < 0) at = 0;
    const auto floor = static_cast<std::int64_t>(at);
    if (floor >= in - 1) return {in - 1, in - 1, A(0)};
    return {floor, floor + 1, at - static_cast<A>(floor)};
  }
  /// Returns the outputs that read input position i. Positions grow with the outputs, so both ends
  /// are found by bisection.
  TUTTI_HOST_DEVICE PositionRange<std::int64_t> outputs(std::int64_t i) const {
    return {first_output([=](const InterpolationTaps<A>& t) { return t.second >= i; }),
            first_output([=](const InterpolationTaps<A>& t) { return t.first > i; })};
  }

 private:
  // Returns the first output whose taps fulfil a condition that all later ones fulfil, too.
  template <class Condition>
  TUTTI_HOST_DEVICE std::int64_t first_output(const Condition& condition) const {
    std::int64_t begin = 0, end = out;
    while (begin < end) {
      const std::int64_t middle = begin + (end - begin) / 2;
      if (condition(taps(middle))) end = middle;
      else begin = middle + 1;
    }
    return begin;
  }
};

}  // namespace tutti::kernels
