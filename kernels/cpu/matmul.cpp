// Matrix products on the CPU: oneDNN computes float32 and bfloat16, the reference computes float64
// and whatever oneDNN has no kernel for.
#include "../matmul.h"

#include "../../core/create.h"
#include "../elementwise.h"
#include "onednn.h"
#include "reference_matmul.h"

#include <optional>

namespace tutti::kernels::cpu {
namespace {

// Returns the first batch dimension along which both factors repeat their matrices; none if there
// is no such dimension. oneDNN broadcasts a factor only to the size of the other one.
std::optional<int> repeated_by_both(const Tensor& a, const Tensor& b, const Tensor& out) {
  const auto repeats = [](const Tensor& t, int d) {
    return t.shape()[d] == 1 || t.strides()[d] == 0;
  };
  for (int d = 0; d < out.rank() - 2; ++d)
    if (out.shape()[d] > 1 && repeats(a, d) && repeats(b, d)) return d;
  return {};
}

Tensor row_major_copy(const Tensor& t) {
  const Tensor copy = empty(t.shape(), {t.dtype()});
  elementwise().copy(t, copy);
  return copy;
}

void multiply(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out);

// Multiplies with a copy of the factor that is expanded in dimension d, the smaller one if both
// are. The copy repeats no matrix; a dimension in which only the other factor is expanded may
// remain.
void multiply_copy(const Tensor& a, const Tensor& b, int d, const Epilogue& epilogue,
                   const Tensor& out) {
  if (b.shape()[d] == 1 || (a.shape()[d] > 1 && a.numel() <= b.numel()))
    return multiply(row_major_copy(a), b, epilogue, out);
  multiply(a, row_major_copy(b), epilogue, out);
}

void multiply(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out) {
  dispatch(RealTypes{}, a.dtype(), "matmul", []<class T>() {});
  if (out.numel() == 0) return;
  if (a.dtype() != float64)
    if (const auto d = repeated_by_both(a, b, out)) return multiply_copy(a, b, *d, epilogue, out);
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
