// Making tensors: uninitialised, constant, counted, random, from C++ values, or around somebody
// else's memory. Constants and masks are made where they are to be; other values on the CPU, and
// copied once to another device.
#pragma once

#include "random.h"
#include "tensor.h"

#include <vector>

namespace tutti {

struct TensorOptions {
  DType dtype = DType::float32;
  Device device = Device::cpu();
};

Tensor empty(const Shape& shape, TensorOptions options = {},
             MemoryFormat format = MemoryFormat::contiguous);
/// Uninitialised, with the shape of `like` and its layout where that is dense (else contiguous).
Tensor empty_like(const Tensor& like);
Tensor empty_like(const Tensor& like, DType dtype);

Tensor zeros(const Shape& shape, TensorOptions options = {});
Tensor ones(const Shape& shape, TensorOptions options = {});
Tensor full(const Shape& shape, double value, TensorOptions options = {});
Tensor zeros_like(const Tensor& like);
/// 0, 1, ..., n-1 as int64 unless asked otherwise.
Tensor arange(std::int64_t n, TensorOptions options = {.dtype = DType::int64});

/// Uniform in [0, 1), standard normal, and integers below `bound`, drawn in row-major order.
Tensor rand(const Shape& shape, TensorOptions options = {},
            Generator& generator = default_generator());
Tensor randn(const Shape& shape, TensorOptions options = {},
             Generator& generator = default_generator());
Tensor randint(std::int64_t bound, const Shape& shape,
               TensorOptions options = {.dtype = DType::int64},
               Generator& generator = default_generator());
/// 1 with probability `p`, else 0: one 32-bit draw for each element, in row-major order. ValueError
/// for a p outside [0, 1].
Tensor bernoulli(double p, const Shape& shape, TensorOptions options = {},
                 Generator& generator = default_generator());

/// The values in row-major order, converted to `options.dtype`. ShapeError where their number does
/// not fit.
Tensor tensor(const std::vector<double>& values, const Shape& shape, TensorOptions options = {});
Tensor tensor(const std::vector<double>& values, TensorOptions options = {});  ///< one dimension
Tensor scalar(double value, TensorOptions options = {});                       ///< shape ()

/// A view of memory that its owner keeps alive, for ever where a collective on it fails; the last
/// view runs `release`.
Tensor from_blob(void* data, const Shape& shape, DType dtype, std::function<void()> release = {},
                 Device device = Device::cpu());

/// Every element in row-major order, converted to double, copied to the host: for tests and
/// printing.
std::vector<double> to_vector(const Tensor& tensor);

}  // namespace tutti
