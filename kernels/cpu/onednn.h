// Convolution and matrix products through oneDNN. All calls of oneDNN are in onednn*.cpp and
// onednn_primitive.h, so that another major version of it touches no other file. The arguments
// are those of kernels/kernels.h, but no tensor may be empty.
#pragma once

#include "../options.h"

/// Each function returns false and does nothing if oneDNN has no kernel for these dtypes on this
/// processor; convolution_forward() also where oneDNN's kernel is known to be wrong.
namespace tutti::kernels::cpu::onednn {

/// Keeps the reordered weight where PackedWeights::of(w) is not null.
bool convolution_forward(const Tensor& x, const Tensor& w, const Tensor& bias,
                         const ConvOptions& options, const Tensor& y);
bool convolution_backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                                const Tensor& dx);
bool convolution_backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                                 const Tensor& dw, const Tensor& db);
bool matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out);

}  // namespace tutti::kernels::cpu::onednn
