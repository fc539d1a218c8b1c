// The gradients of a list of parameters as kernels want them: for clipping and loss scaling, which
// change them in place.
#pragma once

#include "../core/tensor.h"

#include <vector>

namespace tutti::optim {

/// Of every parameter that has one, made dense where it is not. DeviceError that names `op` where
/// they are on several devices. Call inside NoGrad.
std::vector<Tensor> dense_gradients(const char* op, const std::vector<Tensor>& parameters);

}  // namespace tutti::optim
