// Convolution written plainly, for any floating dtype, layout and stride, summed in float64: what
// float64 tensors run on, what is left where oneDNN has no kernel, and the oracle of the tests.
// Arguments as in kernels/convolution.h.
#pragma once

#include "../convolution.h"

namespace tutti::kernels::cpu::reference {

void convolution_forward(const Tensor& x, const Tensor& w, const Tensor& bias,
                         const ConvOptions& options, const Tensor& y);
void convolution_backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                                const Tensor& dx);
void convolution_backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                                 const Tensor& dw, const Tensor& db);

}  // namespace tutti::kernels::cpu::reference
