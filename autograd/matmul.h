// The differentiable matrix product.
#pragma once

#include "../core/tensor.h"

namespace tutti {

/// a (..., m, k) times b (..., k, n), with batch dimensions broadcast. A vector on the left is a
/// row, on the right a column, and its dimension is missing from the result; two vectors give their
/// dot product, shape (). Autocast casts both operands. ShapeError where the sizes do not fit;
/// DTypeError where the dtypes differ.
Tensor matmul(const Tensor& a, const Tensor& b);

}  // namespace tutti
