// The look-up of table rows as a differentiable function.
#pragma once

#include "../../core/tensor.h"

#include <optional>

namespace tutti::nn {

/// Returns the rows of `weight` (V, D) that `indices` (int64, any shape) name: a tensor of shape
/// indices.shape + (D,). The gradient of `weight` is dense, and zero for row `padding_idx`.
/// ShapeError, DTypeError or DeviceError for tensors that do not fit together; ValueError for a
/// padding_idx or (on the CPU) an index outside the table.
Tensor embedding(const Tensor& indices, const Tensor& weight,
                 std::optional<std::int64_t> padding_idx = {});

}  // namespace tutti::nn
