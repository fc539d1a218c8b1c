// What the differentiable functions share: checks of operands, outputs in the right layout, and
// gradients that may overwrite the incoming one. An implementation detail of
// autograd/functions*.cpp and nn/functional.
#pragma once

#include "../core/create.h"

namespace tutti::autograd {

/// DeviceError that names `op` unless both are on one device.
void expect_same_device(const char* op, const Tensor& a, const Tensor& b);

/// The same, and a DTypeError unless both have one dtype.
void expect_same_dtype_and_device(const char* op, const Tensor& a, const Tensor& b);

/// DTypeError that names `op` unless tensors of x's dtype can be computed with `number`: integers
/// take whole ones.
void expect_number_fits(const char* op, const Tensor& x, double number);

/// DTypeError that names `op` unless `x` holds floating numbers.
void expect_floating(const char* op, const Tensor& x);

/// DeviceError or DTypeError that names `op` unless `parameter` (undefined: there is none) fits the
/// input: both have one dtype or, in mixed precision, the input has 16 bits and the parameter is
/// float32.
void expect_parameter(const char* op, const Tensor& input, const Tensor& parameter);

/// Uninitialised, of shape `shape`, in the layout of the first operand that has this shape and is
/// dense.
Tensor empty_result(const Shape& shape, const std::vector<Tensor>& operands, DType dtype);

/// Where the gradient of something shaped like `like` can be written: `g` itself when nobody else
/// can see it and it lies as `like` does, else a new tensor. Saves a pass over memory that is not
/// in the cache.
Tensor gradient_buffer(const Tensor& g, const Tensor& like);

}  // namespace tutti::autograd
