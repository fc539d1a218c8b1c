// Convolution, pooling and matrix products through oneDNN. Every call of oneDNN is in onednn.cpp
// and onednn_plan.*, so that another major version of it touches no other file. Arguments as in
// kernels/convolution.h, pooling.h and matmul.h, but not empty.
#pragma once

#include "../convolution.h"
#include "../pooling.h"

/// Each returns false, having done nothing, where oneDNN has no implementation for these dtypes on
/// this processor.
namespace tutti::kernels::cpu::onednn {

bool convolution_forward(const Tensor& x, const Tensor& w, const Tensor& bias,
                         const ConvOptions& options, const Tensor& y);
bool convolution_backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                                const Tensor& dx);
bool convolution_backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                                 const Tensor& dw, const Tensor& db);
/// Maximum, or average where not `max`. Unlike the plain code it passes over a NaN in a window, and
/// it adds up the bfloat16 gradients of overlapping windows in bfloat16.
bool pooling_forward(const Tensor& x, const PoolOptions& options, bool max, const Tensor& y,
                     const Tensor& index);
bool pooling_backward(const Tensor& dy, const Tensor& index, const PoolOptions& options, bool max,
                      const Tensor& dx);
bool matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out);

}  // namespace tutti::kernels::cpu::onednn
