// A plain matrix product for any floating dtype and strides, with sums in float64. float64 tensors
// run on it, and so does whatever oneDNN has no kernel for; the tests use it as their reference.
// The arguments are those of kernels/matmul.h.
#pragma once

#include "../matmul.h"

namespace tutti::kernels::cpu::reference {

void matmul(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out);

}  // namespace tutti::kernels::cpu::reference
