// This file declares the persistent kernels, which compute the forward or the backward of a single
// rank in one launch that reads its input from memory once. docs/kernels.md says for which shapes
// they run.
#pragma once

#include "batch_norm_statistics.h"

namespace tutti::kernels::cuda {

/// Computes the moments of x, writes the outputs that `statistics` asks for, and applies the
/// normalisation `to` to compute y. Returns false and does nothing if x has an unsuitable layout or
/// does not fit into the device's shared memory, or while a communicator of several ranks lives on
/// the device.
bool persistent_forward(const Tensor& x, const Statistics& statistics, const Normalization& to,
                        const Tensor& y);
/// Computes what gradient_sums and apply_grad compute one after the other. Returns false and does
/// nothing where persistent_forward would.
bool persistent_backward(const LocalBackward& arguments);

}  // namespace tutti::kernels::cuda
