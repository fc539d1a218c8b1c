// The differentiable free functions on tensors: arithmetic with broadcasting, elementwise
// mathematics, comparisons, reductions, softmax, joining. Each is one function: kernels compute,
// `record` remembers. Matrix products, convolutions, normalisation and losses have files of their
// own.
//
// Operands must share a dtype (DTypeError) and a device (DeviceError); a number takes the tensor's
// dtype. Shapes broadcast as in NumPy (ShapeError). Outputs keep the memory layout of the operand
// that has their shape.
#pragma once

#include "../core/tensor.h"

#include <vector>

namespace tutti {

// ---- arithmetic. Division and pow want a floating dtype.
Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator+(const Tensor& a, double b);
Tensor operator+(double a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, double b);
Tensor operator-(double a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, double b);
Tensor operator*(double a, const Tensor& b);
Tensor operator/(const Tensor& a, const Tensor& b);
Tensor operator/(const Tensor& a, double b);
Tensor operator/(double a, const Tensor& b);
Tensor operator-(const Tensor& x);

// ---- elementwise
Tensor abs(const Tensor& x);  ///< gradient 0 at 0
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);  ///< 1 / sqrt(x)
Tensor square(const Tensor& x);
Tensor pow(const Tensor& x, double exponent);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);  ///< 1 / (1 + exp(-x))
Tensor relu(const Tensor& x);     ///< max(x, 0); NaN stays NaN
Tensor gelu(const Tensor& x);     ///< x Phi(x) = 0.5 x (1 + erf(x / sqrt 2)), exact
Tensor maximum(const Tensor& a,
               const Tensor& b);  ///< where both are equal each gets half of the gradient
Tensor minimum(const Tensor& a, const Tensor& b);
/// condition ? a : b, the three broadcast; `condition` is bool.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

// ---- comparisons: bool results, without gradient
Tensor eq(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, double b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, double b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, double b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, double b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, double b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, double b);

// ---- reductions over all dimensions (shape ()) or over some, which disappear unless `keepdim`. No
// dimension may be listed twice. bool and uint8 sum to int64.
Tensor sum(const Tensor& x);
Tensor sum(const Tensor& x, const Dims& dims, bool keepdim = false);
Tensor mean(const Tensor& x);  ///< floating dtypes; NaN for an empty tensor
Tensor mean(const Tensor& x, const Dims& dims, bool keepdim = false);
/// The extremes; equal ones share the gradient evenly. ShapeError where there is nothing to choose
/// from.
Tensor max(const Tensor& x);
Tensor max(const Tensor& x, const Dims& dims, bool keepdim = false);
Tensor min(const Tensor& x);
Tensor min(const Tensor& x, const Dims& dims, bool keepdim = false);
/// Index of the first largest element along `dim` (int64), without gradient.
Tensor argmax(const Tensor& x, std::int64_t dim, bool keepdim = false);

// ---- along one dimension
Tensor softmax(const Tensor& x, std::int64_t dim);      ///< exp(x - max) / sum exp(x - max)
Tensor log_softmax(const Tensor& x, std::int64_t dim);  ///< x - max - log sum exp(x - max)

// ---- joining: shapes agree except along `dim` (cat) or entirely (stack, which inserts `dim`).
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim = 0);

}  // namespace tutti
