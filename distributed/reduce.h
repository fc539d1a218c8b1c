// The arithmetic of a reduction over ranks, in rank order: ((x0 + x1) + x2) + ... Every backend
// that computes on the CPU uses it, so their results agree to the bit. float32 and wider types
// accumulate in their own type, 16-bit types in float32 with one rounding at the end. A NaN on any
// rank makes the result NaN, for min and max too.
#pragma once

#include "collective.h"

namespace tutti::distributed {

/// Throws a DTypeError where `op` has no meaning for `dtype`: the mean of integers, the sum of
/// booleans.
void check_reducible(DType dtype, ReduceOp op, const char* operation);

/// Sets outputs[j][i] = op over r of inputs[r][i] for i < count. An output may be one of the
/// inputs.
void reduce_in_rank_order(DType dtype, ReduceOp op, std::span<const void* const> inputs,
                          std::span<void* const> outputs, std::int64_t count);

}  // namespace tutti::distributed
