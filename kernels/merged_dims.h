// Merging of dimensions: several tensors of one shape seen with as few dimensions as possible, so
// that loops over their elements are as long as they can be.
#pragma once

#include "../core/tensor.h"

#include <array>
#include <span>

namespace tutti::kernels {

struct MergedDims {
  static constexpr std::size_t max_tensors = 5;
  /// Sizes without dimensions of size 1, outermost first; empty where there is one element only.
  Shape shape;
  /// The strides of each tensor, in elements; 0 where the tensor broadcasts.
  std::array<Strides, max_tensors> strides;
};

/// Merges the dimensions that all tensors can merge. The first tensor (usually the output) has the
/// full shape and its strides decide the order, the largest outermost; the others broadcast to it.
MergedDims merge_dims(std::span<const Tensor* const> tensors);

}  // namespace tutti::kernels
