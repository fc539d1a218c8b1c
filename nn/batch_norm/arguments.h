// The arguments of batch norm: whether they fit together, and as the kernels want them, dense. What
// is refused is refused before anything happened.
#pragma once

#include "functional.h"

namespace tutti::nn {

/// Throws what batch_norm documents, but for what only the values of position weights tell.
void check_arguments(const Tensor& x, const BatchNormArgs& args);

/// That `residual` is like x.
void check_residual(const Tensor& x, const Tensor& residual, const BatchNormArgs& args);

/// How many channels the tensors of `args` are for, whatever x has; those of x where none of them
/// tells.
std::int64_t expected_channels(const Tensor& x, const BatchNormArgs& args);

/// The format in which x is dense, else the one that is nearer to its strides.
MemoryFormat format_of(const Tensor& x);
/// x itself where it is dense in this format, else a copy; without history.
Tensor dense(const Tensor& x, MemoryFormat format);

/// One weight for every position, in the order of the rows or planes of x: float32, or float64
/// where they came so.
Tensor dense_weights(const Tensor& x, const BatchNormArgs& args);

/// What is wrong with a batch of at most one element per channel.
std::string too_few(const BatchNormArgs& args, double count, const Shape& input);

/// "SyncBatchNorm 'layer1.bn1' forward #41 on rank 2 of 4": how errors begin.
std::string place(const BatchNormArgs& args);

}  // namespace tutti::nn
