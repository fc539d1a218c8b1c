// The gradients of a list of parameters, as the kernels of clipping and loss scaling need them. An
// implementation detail of optim/.
#pragma once

#include "../core/tensor.h"

#include <vector>

namespace tutti::optim {

/// Returns the gradients of the parameters that have one. A gradient that is not dense is replaced
/// by a dense copy. DeviceError that names `op` if they are on several devices. Call it inside
/// NoGrad.
std::vector<Tensor> dense_gradients(const char* op, const std::vector<Tensor>& parameters);

}  // namespace tutti::optim
