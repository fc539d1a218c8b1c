// This file implements the apply pass of batch norm on the CPU. It computes y = max(0, (x - center)
// scale + shift + residual) in one pass over x; residual and ReLU are optional.
#include "../element_types.h"
#include "batch_norm_layout.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

template <bool relu, class V>
[[gnu::always_inline]] inline V rectify(V z) {
  if constexpr (relu) return z < V{} ? V{} : z;  // NaN stays NaN
  return z;
}

// Normalises `rows` rows of `width` values. It processes two rows at a time, which use the
// per-channel numbers together. The two rows are far apart in memory, for the prefetcher's sake, as
// add_rows in batch_norm_moments.cpp explains.
template <class T, class A, bool relu, bool add>
void apply_rows(const T* __restrict x, const T* __restrict residual, T* __restrict y,
                std::int64_t rows, std::int64_t width, const OutputCoefficientArrays<A>& of) {
  const A* __restrict center = of.center.data();
  const A* __restrict scale = of.scale.data();
  const A* __restrict shift = of.shift.data();
  const auto element = [&](std::int64_t i, auto lanes, auto k, auto s, auto b) {
    auto z = (lanes.load(x + i) - k) * s + b;
    if constexpr (add) z += lanes.load(residual + i);
    lanes.store(y + i, rectify<relu>(z));
  };
  const std::int64_t pairs = rows / 2, apart = pairs * width;
  for (std::int64_t at = 0; at < apart; at += width)
    for_lanes<T>(width, [&](std::int64_t c, auto lanes) {
      const auto k = lanes.get(center + c), s = lanes.get(scale + c), b = lanes.get(shift + c);
      element(at + c, lanes, k, s, b);
      element(at + apart + c, lanes, k, s, b);
    });
  for (std::int64_t at = 2 * apart; at < rows * width; at += width)
    for_lanes<T>(width, [&](std::int64_t c, auto lanes) {
      element(at + c, lanes, lanes.get(center + c), lanes.get(scale + c), lanes.get(shift + c));
    });
}

template <class T, class A, bool relu, bool add>
void apply_plane(const T* __restrict x, const T* __restrict residual, T* __restrict y,
                 std::int64_t n, const OutputCoefficients<A>& of) {
  const A center = of.center, scale = of.scale, shift = of.shift;
  for_lanes<T>(n, [&](std::int64_t i, auto lanes) {
    auto z = (lanes.load(x + i) - center) * scale + shift;
    if constexpr (add) z += lanes.load(residual + i);
    lanes.store(y + i, rectify<relu>(z));
  });
}

template <class T, bool relu, bool add>
void apply_as(const ActivationLayout& layout, const T* x, const Normalization& n, T* y) {
  using A = Accumulate<T>;
  const T* residual = add ? n.residual.data<T>() : nullptr;
  const auto residual_at = [residual](std::int64_t at) { return add ? residual + at : nullptr; };
  if (layout.is_rows) {
    const std::int64_t group = layout.rows_in_group(), width = group * layout.channels,
                       groups = layout.outer / group;
    const OutputCoefficientArrays<A> of(n, layout.channels, group);
    const auto rows = [&](std::int64_t at, std::int64_t count, std::int64_t of_width) {
      apply_rows<T, A, relu, add>(x + at, residual_at(at), y + at, count, of_width, of);
    };
    rows(groups * width, layout.outer - groups * group, layout.channels);
    parallel_backwards(
        groups, 16384 / width, std::max<std::int64_t>(2, elements_in_block / width / 2 * 2),
        [&](std::int64_t first, std::int64_t last) { rows(first * width, last - first, width); });
    return;
  }
  const OutputCoefficientArrays<A> of(n, layout.channels, 1);
  parallel_backwards(layout.outer * layout.channels, 16384 / layout.inner,
                     std::max<std::int64_t>(1, elements_in_block / layout.inner),
                     [&](std::int64_t first, std::int64_t last) {
                       for (std::int64_t plane = first; plane < last; ++plane) {
                         const auto c = static_cast<std::size_t>(plane % layout.channels);
                         const std::int64_t at = plane * layout.inner;
                         apply_plane<T, A, relu, add>(x + at, residual_at(at), y + at, layout.inner,
                                                      {of.center[c], of.scale[c], of.shift[c]});
                       }
                     });
}

}  // namespace

void batch_norm_apply(const Tensor& x, const Normalization& normalization, const Tensor& y) {
  const ActivationLayout layout(x);
  if (layout.outer == 0) return;
  dispatch(RealTypes{}, x.dtype(), "batch_norm", [&]<class T>() {
    dispatch_flag(normalization.relu, [&]<bool relu>() {
      dispatch_flag(normalization.residual.defined(), [&]<bool add>() {
        apply_as<T, relu, add>(layout, x.data<T>(), normalization, y.data<T>());
      });
    });
  });
}

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
