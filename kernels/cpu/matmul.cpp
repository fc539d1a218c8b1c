// Matrix products on the CPU: oneDNN computes float32 and bfloat16, the reference computes float64
// and whatever oneDNN has no kernel for.
#include "../kernels.h"

#include "../../core/cpu_level.h"
#include "../../core/create.h"
#include "onednn.h"
#include "onednn_limits.h"
#include "reference.h"

#include <optional>

namespace tutti::kernels::cpu {

void matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out);

using SmallProduct = bool(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out);
/// Computes a product as kernels/kernels.h describes it if it has float32 matrices without batches,
/// at most 16384 multiplications, and dense rows or columns where its loops need them. Returns
/// false and does nothing otherwise. Sums are taken in float32, by the calling thread alone.
TUTTI_CPU_LEVEL_FUNCTION(SmallProduct, small_matmul)
using Product = void(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out);
TUTTI_CPU_LEVEL_FUNCTION(Product, reference_matmul)

void reference::matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out) {
  reference_matmul_of_level()(a, b, bias, out);
}

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
  table().elementwise.copy(t, copy);
  return copy;
}

// Returns the matrices of t as a view of at most three dimensions; none if the matrices are not
// evenly spaced in memory, or if t repeats them for the batch of `out`.
std::optional<Tensor> merge_batch_dims(const Tensor& t, const Tensor& out) {
  const int row = t.rank() - 2, column = t.rank() - 1;
  if (row == 0) return t;
  std::int64_t count = 1, stride = 0;
  for (int d = row - 1; d >= 0; --d) {
    if (out.shape()[d] == 1) continue;
    const std::int64_t step = t.strides()[d];
    if (t.shape()[d] == 1 || step == 0) return {};
    if (count == 1) stride = step;
    if (step != count * stride && count > 1) return {};
    count *= out.shape()[d];
  }
  return t.alias({count, t.shape()[row], t.shape()[column]},
                 {stride, t.strides()[row], t.strides()[column]}, t.offset());
}

Tensor merge_or_copy(const Tensor& t, const Tensor& out) {
  if (const auto merged = merge_batch_dims(t, out)) return *merged;
  Shape shape = out.shape();
  shape[t.rank() - 2] = t.size(-2);
  shape[t.rank() - 1] = t.size(-1);
  const Tensor copy = empty(shape, {t.dtype()});
  table().elementwise.copy(t.expand(shape), copy);
  return *merge_batch_dims(copy, out);
}

// Multiplies through views, or copies, whose strides every version of oneDNN reads well.
bool multiply_with_plain_strides(const Tensor& a, const Tensor& b, const Tensor& bias,
                                 const Tensor& out) {
  const bool is_gapped_row = a.size(-2) == 1 && a.strides()[a.rank() - 1] != 1;
  const bool is_gapped_column = out.size(-1) == 1 && out.strides()[out.rank() - 2] != 1;
  const bool is_plain = !is_gapped_column && merge_batch_dims(out, out);
  const Tensor plain_out = is_plain ? out : empty(out.shape(), {out.dtype()});
  if (!onednn::matmul(merge_or_copy(is_gapped_row ? row_major_copy(a) : a, out),
                      merge_or_copy(b, out), bias, *merge_batch_dims(plain_out, out)))
    return false;
  if (!is_plain) table().elementwise.copy(plain_out, out);
  return true;
}

bool multiply_by_onednn(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out) {
  return onednn::needs_plain_strides() ? multiply_with_plain_strides(a, b, bias, out)
                                       : onednn::matmul(a, b, bias, out);
}

// Multiplies with a copy of the factor that is expanded in dimension d, the smaller one if both
// are. The copy repeats no matrix; a dimension in which only the other factor is expanded may
// remain.
void multiply_copy(const Tensor& a, const Tensor& b, int d, const Tensor& bias, const Tensor& out) {
  if (b.shape()[d] == 1 || (a.shape()[d] > 1 && a.numel() <= b.numel()))
    return matmul(row_major_copy(a), b, bias, out);
  matmul(a, row_major_copy(b), bias, out);
}

// Multiplies bfloat16 numbers in float32 and rounds the result once.
void multiply_in_float32(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out) {
  const auto wide = [](const Tensor& t) {  // in the same layout: a transposed weight stays so
    const Tensor copy = empty_like(t, float32);
    table().elementwise.copy(t, copy);
    return copy;
  };
  const Tensor wide_out = empty_like(out, float32),
               wide_bias = bias.defined() ? wide(bias) : Tensor();
  matmul(wide(a), wide(b), wide_bias, wide_out);
  table().elementwise.copy(wide_out, out);
}

}  // namespace

void matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out) {
  dispatch(RealTypes{}, a.dtype(), "matmul", []<class T>() {});
  if (out.numel() == 0 || small_matmul_of_level()(a, b, bias, out)) return;
  if (a.dtype() != float64)
    if (const auto d = repeated_by_both(a, b, out)) return multiply_copy(a, b, *d, bias, out);
  if (a.dtype() == bfloat16 && onednn::emulates_bfloat16())
    return multiply_in_float32(a, b, bias, out);
  if (a.dtype() == float64 || a.size(-1) == 0 || !multiply_by_onednn(a, b, bias, out))
    reference::matmul(a, b, bias, out);
}

}  // namespace tutti::kernels::cpu
