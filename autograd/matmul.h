// matmul is the differentiable matrix product.
#pragma once

#include "../core/tensor.h"

namespace tutti {

/// Multiplies a (..., m, k) by b (..., k, n) and broadcasts the batch dimensions. A vector on the
/// left counts as a row and one on the right as a column, and its dimension is missing from the
/// result; two vectors give their dot product, of shape (). Autocast casts both tensors. Throws a
/// ShapeError if the sizes do not fit and a DTypeError if the dtypes differ.
Tensor matmul(const Tensor& a, const Tensor& b);

}  // namespace tutti
