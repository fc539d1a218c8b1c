// Embedding look-up as a function.
#pragma once

#include "../../core/tensor.h"

#include <optional>

namespace tutti::nn {

/// Rows of `weight` (V, D) picked by `indices` (int64, any shape): shape indices.shape + (D). The
/// gradient of `weight` is dense; that of row `padding_idx` is zero. ShapeError, DTypeError,
/// DeviceError; ValueError for a padding_idx or (on the CPU) an index outside the table.
Tensor embedding(const Tensor& indices, const Tensor& weight,
                 std::optional<std::int64_t> padding_idx = {});

}  // namespace tutti::nn
