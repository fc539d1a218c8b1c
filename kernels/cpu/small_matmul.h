// The product of two small matrices without a library, compiled for each level of processors.
#pragma once

#include "../matmul.h"

namespace tutti::kernels::cpu {

/// Computes a product as kernels/matmul.h describes it if it has float32 matrices without batches,
/// at most 16384 multiplications, and dense rows or columns where its loops need them. Returns
/// false and does nothing otherwise. Sums are taken in float32, by the calling thread alone.
bool small_matmul(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out);

}  // namespace tutti::kernels::cpu
