// The differentiable functions that choose, move and count elements by their indices: gather,
// index_select, topk, sort, one_hot, flip and pad. Slices and other views are members of Tensor,
// and choices by a condition stand in functions.h.
//
// Indices are int64 and count from 0. On the CPU an index out of range throws a ValueError. A GPU
// gives NaN there (0 as an integer) and no gradient, because reading the indices back would make
// the host wait. Gradients are added in the order of the indices: they have the same bits in every
// run.
#pragma once

#include "../core/tensor.h"

#include <utility>

namespace tutti {

/// Returns the elements of `x` at the indices along `dim`: out[i][j][k] = x[i][index[i][j][k]][k]
/// for three dimensions and dim 1. `index` has the rank of `x`; in the other dimensions its size is
/// at most that of `x` (else a ShapeError). The result has the shape of `index`.
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);

/// Returns the slices of `x` at the indices along `dim`, in the order of the vector `index`. An
/// index may occur several times.
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);

/// Returns the `k` largest elements along `dim`, the largest first, and their indices. NaN is
/// larger than every number; equal elements come in the order of their indices. A gradient flows to
/// the elements. ValueError unless `k` is from 0 to the size of the dimension. On a GPU the time
/// grows with `k` times the size.
std::pair<Tensor, Tensor> topk(const Tensor& x, std::int64_t k, std::int64_t dim = -1);

/// Returns the elements along `dim` in ascending order, or descending, and their indices. NaN is
/// larger than every number; equal elements keep their order. A gradient flows to the elements.
std::pair<Tensor, Tensor> sort(const Tensor& x, std::int64_t dim = -1, bool descending = false);

/// Returns int64 vectors of `classes` zeros with a one at each index, along a new last dimension.
/// On a GPU an index out of range gives zeros.
Tensor one_hot(const Tensor& index, std::int64_t classes);

/// Returns a copy with the order of the elements along each of `dims` reversed.
Tensor flip(const Tensor& x, const Dims& dims);

/// Returns `x` with elements `value` added before and after: `padding` holds two numbers for each
/// dimension, from the last dimension on, for the last four at most, as in PyTorch: {left, right,
/// top, bottom}. Negative numbers cut elements off. ShapeError for numbers that do not fit the
/// shape, DTypeError if `x` holds integers and the value has a fraction or is outside the dtype.
Tensor pad(const Tensor& x, const Dims& padding, double value = 0);

}  // namespace tutti
