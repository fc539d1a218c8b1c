// y = max(0, (x - center) scale + shift + residual) on the CPU: one pass, each part optional.
#include "batch_norm_tables.h"
#include "batch_norm_view.h"

namespace tutti::kernels::cpu {
namespace {

template <bool relu, class V>
[[gnu::always_inline]] inline V rectify(V z) {
  if constexpr (relu) return z < V{} ? V{} : z;  // NaN stays NaN
  return z;
}

// Two rows at a time share the per-channel numbers; they lie far apart, see add_rows in
// batch_norm_moments.cpp.
template <class T, class A, bool relu, bool add>
void apply_rows(const T* __restrict x, const T* __restrict residual, T* __restrict y,
                std::int64_t rows, std::int64_t width, const A* __restrict center,
                const A* __restrict scale, const A* __restrict shift) {
  const auto element = [&](std::int64_t i, auto as, auto k, auto s, auto b) {
    auto z = (as.load(x + i) - k) * s + b;
    if constexpr (add) z += as.load(residual + i);
    as.store(y + i, rectify<relu>(z));
  };
  const std::int64_t steps = rows / 2, apart = steps * width;
  for (std::int64_t at = 0; at < apart; at += width)
    for_lanes<T>(width, [&](std::int64_t c, auto as) {
      const auto k = as.get(center + c), s = as.get(scale + c), b = as.get(shift + c);
      element(at + c, as, k, s, b);
      element(at + apart + c, as, k, s, b);
    });
  for (std::int64_t at = 2 * apart; at < rows * width; at += width)
    for_lanes<T>(width, [&](std::int64_t c, auto as) {
      element(at + c, as, as.get(center + c), as.get(scale + c), as.get(shift + c));
    });
}

template <class T, class A, bool relu, bool add>
void apply_plane(const T* __restrict x, const T* __restrict residual, T* __restrict y,
                 std::int64_t n, A center, A scale, A shift) {
  for_lanes<T>(n, [&](std::int64_t i, auto as) {
    auto z = (as.load(x + i) - center) * scale + shift;
    if constexpr (add) z += as.load(residual + i);
    as.store(y + i, rectify<relu>(z));
  });
}

template <class T, bool relu, bool add>
void apply_as(const View& v, const T* x, const Normalization& to, T* y) {
  using A = Accumulate<T>;
  const T* residual = add ? to.residual.data<T>() : nullptr;
  const auto part = [residual](std::int64_t at) { return add ? residual + at : nullptr; };
  if (v.rows) {
    const std::int64_t group = v.group(), width = group * v.channels, wide = v.outer / group;
    const Affine<A> f(to, v.channels, group);
    const auto rows = [&](std::int64_t at, std::int64_t count, std::int64_t of_width) {
      apply_rows<T, A, relu, add>(x + at, part(at), y + at, count, of_width, f.center.data(),
                                  f.scale.data(), f.shift.data());
    };
    rows(wide * width, v.outer - wide * group, v.channels);
    parallel_backwards(
        wide, std::max<std::int64_t>(1, 16384 / width),
        std::max<std::int64_t>(2, elements_in_turn / width / 2 * 2),
        [&](std::int64_t first, std::int64_t last) { rows(first * width, last - first, width); });
    return;
  }
  const Affine<A> f(to, v.channels, 1);
  parallel_backwards(v.outer * v.channels, std::max<std::int64_t>(1, 16384 / v.inner),
                     std::max<std::int64_t>(1, elements_in_turn / v.inner),
                     [&](std::int64_t first, std::int64_t last) {
                       for (std::int64_t p = first; p < last; ++p) {
                         const auto c = static_cast<std::size_t>(p % v.channels);
                         const std::int64_t at = p * v.inner;
                         apply_plane<T, A, relu, add>(x + at, part(at), y + at, v.inner,
                                                      f.center[c], f.scale[c], f.shift[c]);
                       }
                     });
}

}  // namespace

void batch_norm_apply(const Tensor& x, const Normalization& to, const Tensor& y) {
  const View v(x);
  if (v.outer == 0) return;
  dispatch(RealTypes{}, x.dtype(), "batch_norm", [&]<class T>() {
    const T* from = x.data<T>();
    T* out = y.data<T>();
    if (to.residual.defined())
      to.relu ? apply_as<T, true, true>(v, from, to, out)
              : apply_as<T, false, true>(v, from, to, out);
    else
      to.relu ? apply_as<T, true, false>(v, from, to, out)
              : apply_as<T, false, false>(v, from, to, out);
  });
}

}  // namespace tutti::kernels::cpu
