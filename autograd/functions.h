// The differentiable functions on tensors: arithmetic, elementwise functions, comparisons,
// reductions, softmax and joining. Indexing, matrix products, convolutions, normalisation and
// losses have headers of their own.
//
// Tensors must have one dtype (else a DTypeError) and one device (else a DeviceError); a number
// takes the dtype of the tensor. Shapes broadcast by NumPy's rule (else a ShapeError). The result
// has the memory layout of the first argument that has its shape.
#pragma once

#include "../core/tensor.h"

#include <optional>
#include <vector>

namespace tutti {

// ---- Arithmetic. Division and pow need a floating dtype.

Tensor operator-(const Tensor& x);
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
/// Returns x to the power of `exponent`, element by element.
Tensor pow(const Tensor& x, double exponent);

// ---- Functions of each element. They need a floating dtype.

Tensor abs(const Tensor& x);     ///< |x|; the gradient at 0 is 0, at NaN it is NaN
Tensor exp(const Tensor& x);     ///< e^x
Tensor log(const Tensor& x);     ///< the natural logarithm
Tensor sqrt(const Tensor& x);    ///< the square root
Tensor rsqrt(const Tensor& x);   ///< 1 / sqrt(x)
Tensor square(const Tensor& x);  ///< x * x
Tensor sin(const Tensor& x);     ///< the sine
Tensor cos(const Tensor& x);     ///< the cosine
Tensor tanh(const Tensor& x);    ///< the hyperbolic tangent
/// Returns x where it is above 0 and slope x elsewhere.
Tensor leaky_relu(const Tensor& x, double slope = 0.01);
Tensor sigmoid(const Tensor& x);  ///< 1 / (1 + exp(-x))
Tensor sign(const Tensor& x);   ///< -1, 0 or 1, NaN for NaN; takes integers, too; the gradient is 0
Tensor floor(const Tensor& x);  ///< the largest whole number that is not above x; gradient 0
Tensor ceil(const Tensor& x);   ///< the smallest whole number that is not below x; gradient 0
Tensor round(const Tensor& x);  ///< the nearest whole number, an even one of two; gradient 0
Tensor relu(const Tensor& x);   ///< max(x, 0); NaN stays NaN and passes the gradient

// ---- Choices between two tensors, or a tensor and numbers.

/// Returns the larger element, or NaN if either is NaN. If both are equal, each gets half of the
/// gradient; where the result is NaN, each gets all of it.
Tensor maximum(const Tensor& a, const Tensor& b);
/// Returns the smaller element, or NaN if either is NaN. The gradient is that of maximum().
Tensor minimum(const Tensor& a, const Tensor& b);
/// Returns the element, or the bound that it exceeds; NaN stays NaN. Without a value, a bound does
/// not exist; above a smaller `max`, `min` has no effect. The gradient passes between the bounds
/// and where the element is NaN, not at the bounds themselves. Throws a ValueError if both are
/// absent, and a DTypeError if `x` holds integers and a bound has a fraction or would give a result
/// that is no element of the dtype, such as a `min` of 300 for uint8.
Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max);
/// Returns a where the bool tensor `condition` is true and b elsewhere; all three broadcast.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
/// Returns `value` where the bool tensor `mask` is true and x elsewhere; both tensors broadcast. No
/// gradient flows to the elements that are replaced. Throws a DTypeError if `x` holds integers and
/// the value has a fraction or is outside the dtype.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

// ---- Comparisons. They return bool tensors, without a gradient. Integers compare exactly with
// numbers of any size.

Tensor eq(const Tensor& a, const Tensor& b);  ///< a == b
/// @overload
Tensor eq(const Tensor& a, double b);
Tensor ne(const Tensor& a, const Tensor& b);  ///< a != b
/// @overload
Tensor ne(const Tensor& a, double b);
Tensor lt(const Tensor& a, const Tensor& b);  ///< a < b
/// @overload
Tensor lt(const Tensor& a, double b);
Tensor le(const Tensor& a, const Tensor& b);  ///< a <= b
/// @overload
Tensor le(const Tensor& a, double b);
Tensor gt(const Tensor& a, const Tensor& b);  ///< a > b
/// @overload
Tensor gt(const Tensor& a, double b);
Tensor ge(const Tensor& a, const Tensor& b);  ///< a >= b
/// @overload
Tensor ge(const Tensor& a, double b);

// A number stands on the right: x > 0.
inline Tensor operator==(const Tensor& a, const Tensor& b) { return eq(a, b); }
inline Tensor operator==(const Tensor& a, double b) { return eq(a, b); }
inline Tensor operator!=(const Tensor& a, const Tensor& b) { return ne(a, b); }
inline Tensor operator!=(const Tensor& a, double b) { return ne(a, b); }
inline Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
inline Tensor operator<(const Tensor& a, double b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
inline Tensor operator<=(const Tensor& a, double b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
inline Tensor operator>(const Tensor& a, double b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
inline Tensor operator>=(const Tensor& a, double b) { return ge(a, b); }

// ---- Logic on bool tensors. A DTypeError for any other dtype.

Tensor operator&(const Tensor& a, const Tensor& b);  ///< a and b
Tensor operator|(const Tensor& a, const Tensor& b);  ///< a or b
Tensor operator~(const Tensor& x);                   ///< not x

// ---- Reductions. Without `dims` they reduce all dimensions, to shape (). The dimensions in
// `dims`, each listed once, disappear from the shape, or get size 1 with `keepdim`. A tensor
// without dimensions counts as one of shape (1,), so that its dimension is 0 or -1.

/// Returns the sum; bool and uint8 sum to int64.
Tensor sum(const Tensor& x);
/// @overload
Tensor sum(const Tensor& x, const Dims& dims, bool keepdim = false);
/// Returns the mean of a floating tensor; NaN if it is empty.
Tensor mean(const Tensor& x);
/// @overload
Tensor mean(const Tensor& x, const Dims& dims, bool keepdim = false);
/// The options of var() and std().
struct VarianceOptions {
  /// The divisor is the number n of elements minus this: 1 gives the unbiased variance of a sample,
  /// 0 that of the elements themselves.
  std::int64_t correction = 1;
  bool keepdim = false;
};

/// Returns sum((x - mean(x))^2) / max(0, n - correction) of a floating tensor: NaN or infinity if
/// the divisor is 0. The mean is subtracted before squaring, so that a mean far from 0 costs no
/// digits; 16-bit tensors are computed in float32.
Tensor var(const Tensor& x);
/// @overload
Tensor var(const Tensor& x, const Dims& dims, const VarianceOptions& options = {});
/// Returns sqrt(var(x)). Elements that are all equal have gradient 0, as in PyTorch.
Tensor std(const Tensor& x);
/// @overload
Tensor std(const Tensor& x, const Dims& dims, const VarianceOptions& options = {});

/// Returns the largest element, or NaN if one is NaN. Equal ones share the gradient evenly, and so
/// do those that are NaN, as in PyTorch's max(x). Throws a ShapeError if there is no element.
Tensor(max)(const Tensor& x);  // in parentheses, as host programs have macros of these names
/// @overload
Tensor(max)(const Tensor& x, const Dims& dims, bool keepdim = false);
/// Returns the smallest element, or NaN if one is NaN. Equal ones share the gradient evenly, and so
/// do those that are NaN, as in PyTorch's min(x). Throws a ShapeError if there is no element.
Tensor(min)(const Tensor& x);
/// @overload
Tensor(min)(const Tensor& x, const Dims& dims, bool keepdim = false);
/// Returns whether an element is not 0 (any), or all are (all), as bool without a gradient.
Tensor any(const Tensor& x);
/// @overload
Tensor any(const Tensor& x, const Dims& dims, bool keepdim = false);
/// @overload
Tensor all(const Tensor& x);
/// @overload
Tensor all(const Tensor& x, const Dims& dims, bool keepdim = false);

/// Returns the int64 index of the first largest element along `dim`, without a gradient.
Tensor argmax(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// Returns the row-major index of the first largest element of the whole tensor, of shape ().
/// Throws a ShapeError if there is no element.
Tensor argmax(const Tensor& x);

// ---- Softmax along one dimension. A tensor without dimensions counts as one of shape (1,).

Tensor softmax(const Tensor& x, std::int64_t dim);      ///< exp(x) / sum(exp(x))
Tensor log_softmax(const Tensor& x, std::int64_t dim);  ///< x - log(sum(exp(x)))

// ---- Joining.

/// Joins tensors along `dim`; the other sizes must be equal.
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
/// Joins tensors of one shape along a new dimension, `dim`.
Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim = 0);

}  // namespace tutti
