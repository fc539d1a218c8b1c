// Helpers of the differentiable functions: checks of arguments, and the allocation of outputs and
// gradients. Private to autograd/ and nn/functional.
#pragma once

#include "../core/create.h"

namespace tutti::autograd {

/// Throws a DeviceError that names `op` unless both tensors are on one device.
void expect_same_device(const char* op, const Tensor& a, const Tensor& b);

/// Throws a DeviceError or DTypeError that names `op` unless both tensors have one device and one
/// dtype.
void expect_same_dtype_and_device(const char* op, const Tensor& a, const Tensor& b);

/// The smallest and the largest number of a dtype; infinite for floating ones. 2^63 counts as an
/// int64, because the largest of them rounds to it.
struct DTypeRange {
  double least, most;
  explicit DTypeRange(DType dtype);
};

/// Throws a DTypeError that names `op` if `x` holds integers and `number` has a fraction or is
/// outside of int64, in which integers are computed.
void expect_number_fits(const char* op, const Tensor& x, double number);

/// Throws a DTypeError that names `op` if `x` holds integers and `number` cannot be one of them.
void expect_element_fits(const char* op, const Tensor& x, double number);

/// Throws a DTypeError that names `op` unless `x` has a floating dtype.
void expect_floating(const char* op, const Tensor& x);

/// Throws a DTypeError that names `op` if `x` is float16 on the CPU, which has no kernels for it.
void expect_computable(const char* op, const Tensor& x);

/// Throws a DTypeError that names `op` unless the device of `x` trains in its dtype: a floating
/// one, but not float16 on the CPU.
void expect_trainable(const char* op, const Tensor& x);

/// Throws a DeviceError or DTypeError that names `op` unless `parameter` fits the input: both have
/// one device and one dtype or, in mixed precision, the input has 16 bits and the parameter is
/// float32. An undefined parameter fits.
void expect_parameter(const char* op, const Tensor& input, const Tensor& parameter);

/// Returns an uninitialised tensor of shape `shape`, in the layout of the first input that has this
/// shape and is dense.
Tensor empty_result(const Shape& shape, const std::vector<Tensor>& inputs, DType dtype);

/// Returns a tensor to write a gradient of the shape and layout of `like` into: the incoming
/// gradient `g` itself if no other handle or view of it exists and its layout is the same, else a
/// new tensor. Overwriting `g` saves a pass over memory that is not in the cache.
Tensor gradient_buffer(const Tensor& g, const Tensor& like);

}  // namespace tutti::autograd
