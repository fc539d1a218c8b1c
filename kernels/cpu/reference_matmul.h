// The matrix product written plainly, for any floating dtype and strides, summed in float64: what
// float64 tensors run on, what is left where oneDNN has no kernel, and the oracle of the tests.
// Arguments as in kernels/matmul.h.
#pragma once

#include "../matmul.h"

namespace tutti::kernels::cpu::reference {

void matmul(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out);

}  // namespace tutti::kernels::cpu::reference
