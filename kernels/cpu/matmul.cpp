// Matrix products on the CPU: oneDNN computes float32 and bfloat16, the reference computes float64
// and whatever oneDNN has no kernel for.
#include "../matmul.h"

#include "../../core/create.h"
#include "../elementwise.h"
#include "onednn.h"
#include "reference_matmul.h"

namespace tutti::kernels::cpu {
namespace {

// Returns whether both factors repeat their matrices along one batch dimension. oneDNN broadcasts a
// factor only to the size of the other one.
bool both_repeat(const Tensor& a, const Tensor& b, const Tensor& out) {
  const auto repeats = [](const Tensor& t, int d) {
    return t.shape()[d] == 1 || t.strides()[d] == 0;
  };
  for (int d = 0; d < out.rank() - 2; ++d)
    if (out.shape()[d] > 1 && repeats(a, d) && repeats(b, d)) return true;
  return false;
}

Tensor row_major_copy(const Tensor& t) {
  const Tensor copy = empty(t.shape(), {t.dtype()});
  elementwise().copy(t, copy);
  return copy;
}

void multiply(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out) {
  dispatch(RealTypes{}, a.dtype(), "matmul", []<class T>() {});
  if (out.numel() == 0) return;
  if (a.dtype() != float64 && both_repeat(a, b, out))
    return multiply(row_major_copy(a), row_major_copy(b), epilogue, out);
  if (a.dtype() == float64 || a.size(-1) == 0 || !onednn::matmul(a, b, epilogue.bias, out))
    return reference::matmul(a, b, epilogue, out);
  // oneDNN could apply relu as a post-op, but version 2.6.3 then turns NaN into 0, and a diverged
  // network would look healthy.
  if (epilogue.activation == Activation::relu) elementwise().unary(Unary::relu, out, out);
}

}  // namespace

const Matmul& matmul() {
  static constexpr Matmul table{.matmul = multiply};
  return table;
}

}  // namespace tutti::kernels::cpu
