// Matrix products on the CPU: oneDNN for float32 and bfloat16, the reference for float64 and whatever oneDNN lacks.
#include "../matmul.h"

#include "onednn.h"
#include "reference_matmul.h"

namespace tutti::kernels::cpu {
namespace {

void multiply(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out) {
  dispatch(RealTypes{}, a.dtype(), "matmul", []<class T>() {});
  if (out.numel() == 0) return;
  if (a.dtype() == float64 || a.size(-1) == 0 || !onednn::matmul(a, b, bias, out)) reference::matmul(a, b, bias, out);
}

}  // namespace

const Matmul& matmul() {
  static constexpr Matmul table{multiply};
  return table;
}

}  // namespace tutti::kernels::cpu
