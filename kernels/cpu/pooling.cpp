// Pooling on the CPU chooses for each call between oneDNN and tutti's loops (pooling_loops.h).
// oneDNN computes float32 and bfloat16 except where the loops are faster (fills_tiles()) or oneDNN
// is wrong: the maximum of a tensor that contains NaN or -infinity, and averages of large windows,
// which it adds one by one in float32 and counts in 32 bits. The loops also compute float64,
// windows that differ in size or reach beyond the padding, and unusual strides.
#include "../kernels.h"

#include "../../core/create.h"
#include "../../core/parallel.h"
#include "onednn.h"
#include "pooling_loops.h"

#include <atomic>

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {
namespace {

// Returns whether the last windows reach beyond the padding, as in ceil_mode.
bool reaches_beyond(const Tensor& x, const Tensor& y, const PoolOptions& o) {
  bool result = false;
  for (int d = 0; d < o.kernel.size(); ++d)
    result |= (y.shape()[d + 2] - 1) * o.stride[d] + o.kernel[d] >
              x.shape()[d + 2] + 2 * o.padding[d];
  return result;
}

// Returns whether oneDNN supports these dtypes and windows, which adaptive ones are not, and the
// tensors are not empty.
bool suits_onednn(const Tensor& x, const Tensor& y, const PoolOptions& options) {
  return (x.dtype() == float32 || x.dtype() == bfloat16) && x.numel() > 0 && y.numel() > 0 &&
         !options.kernel.empty() && !reaches_beyond(x, y, options);
}

// Returns whether oneDNN adds few enough numbers to one sum.
bool has_small_windows(const PoolOptions& o) {
  return product(o.kernel, 0, o.kernel.size()) <= pooling_loops::values_in_float;
}

// Returns whether one of n floating numbers, given as their bits, is NaN or -infinity.
template <class Bits>
bool has_nan_or_negative_infinity(const Bits* bits, std::int64_t n, Bits infinity) {
  constexpr Bits sign = Bits(1) << (8 * sizeof(Bits) - 1);
  Bits found = 0;
  for (std::int64_t i = 0; i < n; ++i)
    found |= static_cast<Bits>(bits[i] & ~sign) > infinity || bits[i] == (infinity | sign)
                 ? Bits(1)
                 : Bits(0);
  return found != 0;
}

// Returns whether a dense float32 or bfloat16 tensor contains a number that oneDNN passes over:
// NaN, and -infinity, instead of which it returns the lowest finite number.
bool has_nan_or_negative_infinity(const Tensor& x) {
  std::atomic<bool> found = false;
  const bool wide = x.dtype() == float32;
  parallel_for(x.numel(), 65536, [&](std::int64_t begin, std::int64_t end) {
    const bool here =
        wide ? has_nan_or_negative_infinity(static_cast<const std::uint32_t*>(x.raw()) + begin,
                                            end - begin, 0x7f800000u)
             : has_nan_or_negative_infinity(static_cast<const std::uint16_t*>(x.raw()) + begin,
                                            end - begin, std::uint16_t{0x7f80});
    if (here) found = true;
  });
  return found;
}

// Computes a gradient by oneDNN: compute(dy, dx). oneDNN adds the gradients of overlapping windows
// in the dtype of dx; those of bfloat16 are added in float32, by tutti's loops where these are
// faster than copies in float32 tensors, and rounded once.
template <class Compute>
bool onednn_backward(const Tensor& dy, const Tensor& index, const PoolOptions& options,
                     const Tensor& dx, const Compute& compute) {
  if (!suits_onednn(dx, dy, options) || !has_small_windows(options)) return false;
  bool overlap = false;
  for (int d = 0; d < options.kernel.size(); ++d) overlap |= options.kernel[d] > options.stride[d];
  if (dx.dtype() == float32 || !overlap) return compute(dy, dx);
  if (pooling_loops::fills_tiles(dx, dy) || !onednn::pooling_takes_layouts(dx, dy, index))
    return false;
  const Tensor wide_dy = empty_like(dy, float32), wide_dx = empty_like(dx, float32);
  table().elementwise.copy(dy, wide_dy);
  if (!compute(wide_dy, wide_dx)) return false;
  table().elementwise.copy(wide_dx, dx);
  return true;
}

// oneDNN would pass over NaN, and a diverged network would look healthy. To look for NaN first
// reads x once more, so that tutti's loops are faster wherever they fill their tiles.
void max_forward(const Tensor& x, const PoolOptions& options, const Tensor& y,
                 const Tensor& index) {
  if (!pooling_loops::fills_tiles(x, y) && suits_onednn(x, y, options) &&
      onednn::pooling_takes_layouts(x, y, index) && !has_nan_or_negative_infinity(x) &&
      onednn::pooling_forward(x, options, true, y, index))
    return;
  pooling_loops::max_forward(x, options, y, index);
}

void max_backward(const Tensor& dy, const Tensor& index, const PoolOptions& options,
                  const Tensor& dx) {
  const auto by_onednn = [&](const Tensor& gradient, const Tensor& to) {
    return onednn::pooling_backward(gradient, index, options, true, to);
  };
  if (onednn_backward(dy, index, options, dx, by_onednn)) return;
  pooling_loops::max_backward(dy, index, options, dx);
}

// Returns the ordinary pooling that an adaptive one is equal to where its windows do not differ in
// size. All other options are returned as they are.
PoolOptions without_adaption(const PoolOptions& given, const Tensor& x, const Tensor& y) {
  if (!given.kernel.empty()) return given;
  PoolOptions options;
  for (int d = 2; d < x.rank(); ++d) {
    if (y.shape()[d] == 0 || x.shape()[d] % y.shape()[d] != 0) return given;
    options.kernel.push_back(x.shape()[d] / y.shape()[d]);
    options.padding.push_back(0);
  }
  options.stride = options.kernel;
  return options;
}

void average_forward(const Tensor& x, const PoolOptions& given, const Tensor& y) {
  const PoolOptions options = without_adaption(given, x, y);
  if (suits_onednn(x, y, options) && has_small_windows(options) &&
      onednn::pooling_forward(x, options, false, y, {}))
    return;
  pooling_loops::average_forward(x, options, y);
}

void average_backward(const Tensor& dy, const PoolOptions& given, const Tensor& dx) {
  const PoolOptions options = without_adaption(given, dx, dy);
  const auto by_onednn = [&](const Tensor& gradient, const Tensor& to) {
    return onednn::pooling_backward(gradient, {}, options, false, to);
  };
  if (onednn_backward(dy, {}, options, dx, by_onednn)) return;
  pooling_loops::average_backward(dy, options, dx);
}

}  // namespace

extern const Pooling pooling{.max_forward = max_forward,
                             .max_backward = max_backward,
                             .average_forward = average_forward,
                             .average_backward = average_backward};

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
