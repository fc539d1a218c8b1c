// Compares one random trial of an operation with its reference: the result, the gradients along one
// path and along two, and that no input was changed.
#pragma once

#include "operation.h"

namespace tutti::test {

/// Draws a trial of the operation from `seed` and compares it. A failure says how to repeat it. A
/// seed that is a multiple of `empty_batch_seeds` draws an empty batch.
void check(const Operation& operation, std::uint64_t seed);

inline constexpr std::uint64_t empty_batch_seeds = 64;

}  // namespace tutti::test
