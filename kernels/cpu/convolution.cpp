// Convolution on the CPU: oneDNN computes float32 and bfloat16, the reference computes float64 and
// whatever oneDNN has no kernel for.
#include "../convolution.h"

#include "../../core/memory.h"
#include "onednn.h"
#include "reference_convolution.h"

namespace tutti::kernels::cpu {
namespace {

void check_dtype(const Tensor& activation) {
  dispatch(RealTypes{}, activation.dtype(), "convolution", []<class T>() {});
}

// `dense` has no gaps in memory.
void zero(const Tensor& dense) {
  zero_bytes(dense.raw(), dense.device(),
             static_cast<std::size_t>(dense.numel()) * size_of(dense.dtype()));
}

void forward(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& options,
             const Tensor& y) {
  check_dtype(x);
  if (y.numel() == 0) return;
  if (x.dtype() == float64 || !onednn::convolution_forward(x, w, bias, options, y))
    reference::convolution_forward(x, w, bias, options, y);
}

void backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                    const Tensor& dx) {
  check_dtype(dy);
  if (dx.numel() == 0) return;
  if (dy.dtype() == float64 || !onednn::convolution_backward_input(dy, w, options, dx))
    reference::convolution_backward_input(dy, w, options, dx);
}

void backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                     const Tensor& dw, const Tensor& db) {
  check_dtype(x);
  if (x.numel() == 0) {
    zero(dw);
    if (db.defined()) zero(db);
    return;
  }
  if (x.dtype() == float64 || !onednn::convolution_backward_weight(x, dy, options, dw, db))
    reference::convolution_backward_weight(x, dy, options, dw, db);
}

}  // namespace

const Convolution& convolution() {
  static constexpr Convolution table{
      .forward = forward, .backward_input = backward_input, .backward_weight = backward_weight};
  return table;
}

}  // namespace tutti::kernels::cpu
