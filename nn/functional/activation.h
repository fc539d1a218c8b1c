// The activations under the names of the nn layer. They are elementwise functions like any other,
// so they live in autograd/functions.h.
#pragma once

#include "../../autograd/functions.h"

namespace tutti::nn {

using tutti::gelu;
using tutti::log_softmax;
using tutti::relu;
using tutti::sigmoid;
using tutti::softmax;
using tutti::tanh;

}  // namespace tutti::nn
