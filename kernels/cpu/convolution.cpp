// Convolution on the CPU: oneDNN computes float32 and bfloat16, Winograd's algorithm those float32
// convolutions for which it is faster, and the reference float64 and whatever oneDNN has no kernel
// for.
#include "../kernels.h"

#include "../../core/create.h"
#include "onednn.h"
#include "onednn_limits.h"
#include "packed_weights.h"
#include "reference.h"
#include "winograd.h"

namespace tutti::kernels::cpu {
namespace {

// `dense` has no gaps in memory.
void zero(const Tensor& dense) {
  zero_bytes(dense.raw(), dense.device(),
             static_cast<std::size_t>(dense.numel()) * size_of(dense.dtype()));
}

// oneDNN rounds a float32 weight to the bfloat16 of the activations. Where a convolution is
// computed without it, the weight is rounded as well, so that the gradients are those of the
// forward.
Tensor converted(const Tensor& t, DType dtype) {
  if (t.dtype() == dtype) return t;
  const Tensor result = empty_like(t, dtype);
  table().elementwise.copy(t, result);
  return result;
}
Tensor in_float32(const Tensor& t) { return converted(t, float32); }

bool is_emulated(const Tensor& activation) {
  return activation.dtype() == bfloat16 && onednn::emulates_bfloat16();
}

void forward(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& options,
             const Tensor& y) {
  if (y.numel() == 0) return;
  if (winograd::is_faster(x, w, y, options) && winograd::forward(x, w, bias, options, y)) return;
  if (is_emulated(x)) {
    const Tensor wide_y = empty_like(y, float32),
                 wide_bias = bias.defined() ? in_float32(bias) : Tensor();
    forward(in_float32(x), in_float32(converted(w, bfloat16)), wide_bias, options, wide_y);
    return table().elementwise.copy(wide_y, y);
  }
  if (x.dtype() == float64 || !onednn::convolution_forward(x, w, bias, options, y))
    reference::convolution_forward(x, converted(w, x.dtype()), bias, options, y);
}

void backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                    const Tensor& dx) {
  if (dx.numel() == 0) return;
  if (winograd::is_faster(dx, w, dy, options) && winograd::backward_input(dy, w, options, dx))
    return;
  if (dy.dtype() == bfloat16 && (is_emulated(dy) || onednn::misreads_bfloat16(dy, w, options))) {
    const Tensor wide_dx = empty_like(dx, float32);
    backward_input(in_float32(dy), in_float32(converted(w, bfloat16)), options, wide_dx);
    return table().elementwise.copy(wide_dx, dx);
  }
  if (dy.dtype() == float64 || !onednn::convolution_backward_input(dy, w, options, dx))
    reference::convolution_backward_input(dy, converted(w, dy.dtype()), options, dx);
}

void backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                     const Tensor& dw, const Tensor& db);

// Computes the gradients of weight and bias in float32 and rounds them to their dtypes.
void backward_weight_in_float32(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                                const Tensor& dw, const Tensor& db) {
  const Tensor wide_dw = empty_like(dw, float32),
               wide_db = db.defined() ? empty_like(db, float32) : Tensor();
  backward_weight(in_float32(x), in_float32(dy), options, wide_dw, wide_db);
  table().elementwise.copy(wide_dw, dw);
  if (db.defined()) table().elementwise.copy(wide_db, db);
}

void backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                     const Tensor& dw, const Tensor& db) {
  if (x.numel() == 0) {
    zero(dw);
    if (db.defined()) zero(db);
    return;
  }
  // oneDNN adds the gradient of the bias position by position in float32.
  constexpr std::int64_t few_positions = 65536;
  if (db.defined() && dy.numel() > few_positions * dy.size(1)) {
    backward_weight(x, dy, options, dw, {});
    Dims shape = Dims::filled(dy.rank(), 1);
    shape[1] = dy.size(1);
    return table().reduce.reduce(Reduction::sum, dy, db.reshape(shape));
  }
  if (!db.defined() && winograd::is_faster(x, dw, dy, options) &&
      winograd::backward_weight(x, dy, options, dw))
    return;
  if (is_emulated(x) || (x.dtype() == bfloat16 && onednn::reads_unwritten_memory(x, options)))
    return backward_weight_in_float32(x, dy, options, dw, db);
  if (x.dtype() == float64 || !onednn::convolution_backward_weight(x, dy, options, dw, db))
    reference::convolution_backward_weight(x, dy, options, dw, db);
}

}  // namespace

extern const Convolution convolution{.forward = forward,
                                     .backward_input = backward_input,
                                     .backward_weight = backward_weight,
                                     .keep_packed = PackedWeights::keep};

}  // namespace tutti::kernels::cpu
