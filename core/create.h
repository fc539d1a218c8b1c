// The functions that make tensors: uninitialised, constant, counted (arange), random, from C++
// values, or around memory of the caller. Constants and random masks are made on the device; other
// values are made on the CPU and copied to another device once.
#pragma once

#include "random.h"
#include "tensor.h"

#include <algorithm>
#include <vector>

namespace tutti {

/// The dtype and the device of a new tensor.
struct TensorOptions {
  DType dtype = DType::float32;
  Device device = Device::cpu();
};

// ---- Uninitialised tensors.

/// Returns a tensor whose elements are not initialised.
Tensor empty(const Shape& shape, TensorOptions options = {},
             MemoryFormat format = MemoryFormat::contiguous);
/// Returns a tensor with the shape of `like`, and with its strides if `like` is dense.
Tensor empty_like(const Tensor& like);
/// @overload
Tensor empty_like(const Tensor& like, DType dtype);

// ---- Constant and counted values.

/// Returns a tensor of zeros.
Tensor zeros(const Shape& shape, TensorOptions options = {});
/// Returns a tensor of ones.
Tensor ones(const Shape& shape, TensorOptions options = {});
/// Returns a tensor whose elements are all `value`.
Tensor full(const Shape& shape, double value, TensorOptions options = {});
/// Returns zeros with the shape, dtype and device of `like`.
Tensor zeros_like(const Tensor& like);
/// Returns 0, 1, ..., n-1. Throws a DTypeError for a uint8 that cannot hold them.
Tensor arange(std::int64_t n, TensorOptions options = {.dtype = DType::int64});

// ---- Random values, drawn in row-major order.

/// Draws from the uniform distribution on [0, 1).
Tensor rand(const Shape& shape, TensorOptions options = {},
            Generator& generator = default_generator());
/// Draws from the standard normal distribution.
Tensor randn(const Shape& shape, TensorOptions options = {},
             Generator& generator = default_generator());
/// Draws integers uniformly from 0..bound-1. Throws a DTypeError as arange() does.
Tensor randint(std::int64_t bound, const Shape& shape,
               TensorOptions options = {.dtype = DType::int64},
               Generator& generator = default_generator());
/// Draws 1 with probability `p`, else 0, from one 32-bit number for each element. Throws a
/// ValueError for a `p` outside [0, 1].
Tensor bernoulli(double p, const Shape& shape, TensorOptions options = {},
                 Generator& generator = default_generator());

// ---- Values and memory of the caller.

namespace detail {
// Throws a ShapeError unless the shape has `count` elements.
void expect_values(std::int64_t count, const Shape& shape);
}  // namespace detail

/// Returns a tensor of the values, in row-major order, converted to `options.dtype`. Throws a
/// ShapeError if their number does not fit the shape.
Tensor tensor(const std::vector<double>& values, const Shape& shape, TensorOptions options = {});
/// Returns a tensor of one dimension.
Tensor tensor(const std::vector<double>& values, TensorOptions options = {});
/// Returns a tensor of values that are exact in the dtype of their C++ type, the default dtype.
/// Throws a ShapeError if their number does not fit the shape.
template <class T>
requires requires { dtype_of<T>::value; }
Tensor tensor(const std::vector<T>& values, const Shape& shape,
              TensorOptions options = {.dtype = dtype_of<T>::value}) {
  detail::expect_values(static_cast<std::int64_t>(values.size()), shape);
  const Tensor host = empty(shape, {.dtype = dtype_of<T>::value});
  std::copy(values.begin(), values.end(), host.template data<T>());
  return host.to(options.dtype).to(options.device);
}
/// Returns a tensor of one dimension.
template <class T>
requires requires { dtype_of<T>::value; }
Tensor tensor(const std::vector<T>& values, TensorOptions options = {.dtype = dtype_of<T>::value}) {
  return tensor(values, Shape{static_cast<std::int64_t>(values.size())}, options);
}
/// Returns a tensor of shape ().
Tensor scalar(double value, TensorOptions options = {});

/// Wraps memory that must outlive every view of it; the last view calls `release`. After a failed
/// collective on it the memory must never be freed, since the transport may still write to it.
/// Throws a ValueError for a null pointer where the shape has elements.
Tensor from_blob(void* data, const Shape& shape, DType dtype, std::function<void()> release = {},
                 Device device = Device::cpu());
/// Wraps memory whose neighbours are `strides` elements apart, such as a picture with padded rows.
Tensor from_blob(void* data, const Shape& shape, const Strides& strides, DType dtype,
                 std::function<void()> release = {}, Device device = Device::cpu());

/// Returns every element in row-major order, converted to T by the rules of Tensor::item() and
/// copied to the host. T is a C++ type of a dtype.
template <class T = double>
std::vector<T> to_vector(const Tensor& tensor);

}  // namespace tutti
