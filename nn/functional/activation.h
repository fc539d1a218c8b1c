// The activation functions under names of the namespace nn. They are elementwise functions like any
// other, so they are defined in autograd/functions.h.
#pragma once

#include "../../autograd/functions.h"

namespace tutti::nn {

using tutti::gelu;
using tutti::hardswish;
using tutti::leaky_relu;
using tutti::log_softmax;
using tutti::relu;
using tutti::sigmoid;
using tutti::silu;
using tutti::softmax;
using tutti::tanh;

}  // namespace tutti::nn
