// This file describes matrices of any strides for a library that supports column-major matrices, a
// flag for "transposed" and one batch dimension. It only computes shapes and strides and needs no
// CUDA.
#pragma once

#include "../../core/tensor.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace tutti::kernels::cuda {

/// A column-major matrix in memory, whose columns begin `leading` elements apart.
struct MatrixLayout {
  std::int64_t rows = 0, columns = 0, leading = 0;
  bool transposed = false;  ///< True if the described matrix is the transpose of this one.
  bool operator==(const MatrixLayout&) const = default;
};

/// Returns the layout of the *transpose* of the matrix in the last two dimensions of `t`, which is
/// how such a library reads a row-major matrix. Returns none if neither rows nor columns are dense,
/// or if they overlap.
inline std::optional<MatrixLayout> transposed_layout(const Tensor& t) {
  const std::int64_t rows = t.size(-2), columns = t.size(-1);
  const std::int64_t row_step = t.strides()[t.rank() - 2], column_step = t.strides()[t.rank() - 1];
  // The stride of a dimension of size 1 has no meaning.
  if ((columns == 1 || column_step == 1) && (rows == 1 || row_step >= columns))
    return MatrixLayout{columns, rows, rows == 1 ? columns : row_step, false};
  if ((rows == 1 || row_step == 1) && (columns == 1 || column_step >= rows))
    return MatrixLayout{rows, columns, columns == 1 ? rows : column_step, true};
  return std::nullopt;
}

/// One batch dimension: the number of its matrices and their stride in each tensor, in elements.
/// The stride is 0 if the tensor has one matrix for all.
struct BatchDim {
  std::int64_t count = 1, a = 0, b = 0, out = 0;
  bool operator==(const BatchDim&) const = default;
};

/// Returns the batch dimensions of a product, merged as far as the strides allow; none for a single
/// matrix. The last one is the longest: the library computes that one, and the caller loops over
/// the others.
inline std::vector<BatchDim> batch_dims(const Tensor& a, const Tensor& b, const Tensor& out) {
  std::vector<BatchDim> dims;
  for (int d = 0; d < out.rank() - 2; ++d) {
    if (out.shape()[d] == 1) continue;
    const BatchDim next{out.shape()[d], a.shape()[d] == 1 ? 0 : a.strides()[d],
                        b.shape()[d] == 1 ? 0 : b.strides()[d], out.strides()[d]};
    const bool continues = !dims.empty() && dims.back().a == next.count * next.a &&
                           dims.back().b == next.count * next.b &&
                           dims.back().out == next.count * next.out;
    if (continues) dims.back() = {dims.back().count * next.count, next.a, next.b, next.out};
    else dims.push_back(next);
  }
  std::ranges::stable_sort(dims, {}, &BatchDim::count);
  return dims;
}

}  // namespace tutti::kernels::cuda
