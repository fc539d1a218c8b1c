// Winograd's convolution: 3x3 kernels with stride 1 need 36 multiplications for 4x4 outputs instead
// of 144. The convolution becomes 36 matrix products, which oneDNN computes, between transforms of
// the input, the weight and the output (winograd_transforms.h). All of it is float32, also between
// tensors of bfloat16.
//
// Rounding errors are 2 to 10 times those of the direct sum in float32: 0.5 to 2 millionths of the
// outputs' root mean square. They are shared within a tile: beside an input that is a million times
// the others, outputs whose windows do not contain it lose their digits too. A value that is not
// finite would spread over its tile, so the functions then give up, and the caller computes the
// direct sum.
#pragma once

#include "../convolution.h"

namespace tutti::kernels::cpu::winograd {

/// Returns whether the functions below take this convolution and are faster than the direct sum:
/// dense channels_last images of float32 or bfloat16, kernels of 3x3 without stride, dilation or
/// groups, channels in multiples of 16, and enough of them. `x` and `y` stand for their gradients,
/// too.
bool is_faster(const Tensor& x, const Tensor& w, const Tensor& y, const ConvOptions& options);

// These compute what the entries of the same names in kernels::Convolution compute, for tensors
// that can_convolve() takes. They return false, and may have written to the result, if an element
// of it is not finite or if oneDNN is absent.

bool can_convolve(const Tensor& x, const Tensor& w, const Tensor& y, const ConvOptions& options);
bool forward(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& options,
             const Tensor& y);
bool backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                    const Tensor& dx);
/// Leaves out the gradient of the bias.
bool backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                     const Tensor& dw);

}  // namespace tutti::kernels::cpu::winograd
