// tutti's loops of pooling on the CPU take every floating dtype, window and layout. They compute
// each element of a result once, from all windows that contain it, so that no memory is zeroed
// first or read back. pooling.cpp chooses between them and oneDNN.
#pragma once

#include "../options.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL::pooling_loops {

/// The channels that a loop computes at a time: two AVX-512 registers of float.
constexpr std::int64_t tile_size = 32;

/// The most values that are added in the accumulation type: the sum is then within 2^8 roundings.
constexpr std::int64_t values_in_float = 256;

/// Returns whether the loops run over full tiles of adjacent channels only, in vectors of 64 bytes.
/// They are then faster than oneDNN with an extra pass over memory before or after it; with
/// narrower vectors they are not always, because oneDNN chooses its code for the processor it
/// finds.
inline bool fills_tiles(const Tensor& x, const Tensor& y) {
  return TUTTI_CPU_VECTOR_BYTES == 64 && x.strides()[1] == 1 && y.strides()[1] == 1 &&
         x.shape()[1] % tile_size == 0;
}

// These functions compute what the entries of the same names in kernels::Pooling compute.

void max_forward(const Tensor& x, const PoolOptions& options, const Tensor& y, const Tensor& index);
void max_backward(const Tensor& dy, const Tensor& index, const PoolOptions& options,
                  const Tensor& dx);
void average_forward(const Tensor& x, const PoolOptions& options, const Tensor& y);
void average_backward(const Tensor& dy, const PoolOptions& options, const Tensor& dx);

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL::pooling_loops

#include "../../core/end_cpu_level.h"
