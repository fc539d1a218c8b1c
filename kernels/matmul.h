// The options of the matrix product kernel (kernels.h).
#pragma once

#include "../core/tensor.h"

namespace tutti::kernels {

/// The activations that a matrix product can apply to its elements before it stores them. gelu is
/// not among them, because cuBLASLt has only its tanh approximation, while the library's gelu is
/// exact.
enum class Activation { none, relu };

/// An epilogue maps an element z of the product to activation(z + bias).
struct Epilogue {
  Tensor bias = {};  ///< (n), dense; undefined for none
  Activation activation = Activation::none;
};

}  // namespace tutti::kernels
