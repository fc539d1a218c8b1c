// Whether a function that changes one tensor may read another one meanwhile.
#pragma once

#include "tensor.h"

namespace tutti {

/// Returns whether two tensors have a byte in common. Tensors of different memory cost two
/// comparisons of addresses.
bool overlap(const Tensor& a, const Tensor& b);

/// Throws a ValueError that names `op` if `read` has elements in the memory of `written`, unless
/// both are the same elements in the same order. `read` broadcasts to `written`.
void expect_no_overlap(const char* op, const Tensor& written, const Tensor& read);

}  // namespace tutti
