// Plain convolutions and matrix products for any floating dtype, layout and stride, with sums in
// float64. float64 tensors run on them, and so does whatever oneDNN has no kernel for; the tests
// use them as their reference. The arguments are those of kernels/kernels.h.
#pragma once

#include "../options.h"

namespace tutti::kernels::cpu::reference {

void matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out);
void convolution_forward(const Tensor& x, const Tensor& w, const Tensor& bias,
                         const ConvOptions& options, const Tensor& y);
void convolution_backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                                const Tensor& dx);
void convolution_backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                                 const Tensor& dw, const Tensor& db);

}  // namespace tutti::kernels::cpu::reference
