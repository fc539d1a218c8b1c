#include "create.h"

#include "cuda/generate.h"

#include <cmath>
#include <cstring>

namespace tutti {
namespace {

// Returns a new tensor whose element i, in row-major order, is next(i). The values are made on the
// CPU and copied to another device once.
template <class Next>
Tensor generate(const Shape& shape, TensorOptions options, Next next) {
  const Tensor host = empty(shape, {options.dtype, Device::cpu()});
  const std::int64_t count = host.numel();
  dispatch(AllTypes{}, options.dtype, "create", [&]<class T>() {
    T* out = host.data<T>();
    for (std::int64_t i = 0; i < count; ++i) out[i] = detail::convert<T>(next(i));
  });
  if (options.device.is_cpu()) return host;
  const Tensor result = empty(shape, options);
  copy_bytes(result.raw(), options.device, host.raw(), Device::cpu(),
             static_cast<std::size_t>(count) * size_of(options.dtype));
  return result;
}

// Throws a DTypeError where `dtype` is uint8 and cannot hold the whole numbers below `bound`.
void expect_bound_fits(const char* op, std::int64_t bound, DType dtype) {
  if (dtype == uint8 && bound > 256)
    fail<DTypeError>("{}: numbers up to {} do not fit uint8; use int64", op, bound - 1);
}

}  // namespace

Tensor empty(const Shape& shape, TensorOptions options, MemoryFormat format) {
  const std::int64_t count = numel(shape);
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(count, static_cast<std::int64_t>(size_of(options.dtype)), &bytes))
    fail<ShapeError>("shape {} of {}: the size in bytes does not fit into 64 bits",
                     to_string(shape), to_string(options.dtype));
  return {std::make_shared<Storage>(static_cast<std::size_t>(bytes), options.device),
          shape,
          dense_strides(shape, format),
          0,
          options.dtype,
          count};
}

Tensor empty_like(const Tensor& like) { return empty_like(like, like.dtype()); }

Tensor empty_like(const Tensor& like, DType dtype) {
  if (!like.is_dense() || like.numel() == 0) return empty(like.shape(), {dtype, like.device()});
  const std::size_t bytes = static_cast<std::size_t>(like.numel()) * size_of(dtype);
  return {std::make_shared<Storage>(bytes, like.device()),
          like.shape(),
          like.strides(),
          0,
          dtype,
          like.numel()};
}

Tensor zeros(const Shape& shape, TensorOptions options) {
  const Tensor result = empty(shape, options);
  zero_bytes(result.raw(), options.device,
             static_cast<std::size_t>(result.numel()) * size_of(options.dtype));
  return result;
}

Tensor zeros_like(const Tensor& like) {
  const Tensor result = empty_like(like);
  zero_bytes(result.raw(), like.device(),
             static_cast<std::size_t>(like.numel()) * size_of(like.dtype()));
  return result;
}

Tensor full(const Shape& shape, double value, TensorOptions options) {
  if (options.device.is_cpu())
    return generate(shape, options, [value](std::int64_t) { return value; });
  return empty(shape, options).fill_(value);
}

Tensor ones(const Shape& shape, TensorOptions options) { return full(shape, 1, options); }

Tensor arange(std::int64_t n, TensorOptions options) {
  expect_bound_fits("arange", n, options.dtype);
  return generate({n}, options, [](std::int64_t i) { return i; });
}

Tensor rand(const Shape& shape, TensorOptions options, Generator& generator) {
  // Draws only as many bits as the dtype holds: rounding 1 - 2^-53 to float32 would give 1.
  const int bits = options.dtype == float64   ? 53
                   : options.dtype == float32 ? 24
                   : options.dtype == float16 ? 11
                                              : 8;
  return generate(shape, options, [&](std::int64_t) {
    return std::ldexp(std::floor(std::ldexp(generator.uniform(), bits)), -bits);
  });
}

Tensor randn(const Shape& shape, TensorOptions options, Generator& generator) {
  return generate(shape, options, [&](std::int64_t) { return generator.normal(); });
}

Tensor randint(std::int64_t bound, const Shape& shape, TensorOptions options,
               Generator& generator) {
  expect_bound_fits("randint", bound, options.dtype);
  return generate(shape, options, [&](std::int64_t) { return generator.below(bound); });
}

Tensor bernoulli(double p, const Shape& shape, TensorOptions options, Generator& generator) {
  if (!(p >= 0 && p <= 1))
    fail<ValueError>("bernoulli: expected a probability in [0, 1], got {}", p);
  const auto below = static_cast<std::uint64_t>(p * 0x1p32);
  if (options.device.is_cpu())
    return generate(shape, options, [&](std::int64_t) { return generator.next() < below ? 1 : 0; });
  const Tensor result = empty(shape, options), one = full({}, 1, {.dtype = options.dtype});
  const std::size_t width = size_of(options.dtype);
  std::uint64_t bits = 0;
  std::memcpy(&bits, one.raw(), width);
  cuda::bernoulli({result.raw(), options.device.index(), width, result.numel(), bits}, generator,
                  below);
  return result;
}

void detail::expect_values(std::int64_t count, const Shape& shape) {
  if (count != numel(shape))
    fail<ShapeError>("tensor: expected {} values for shape {}, got {}", numel(shape),
                     to_string(shape), count);
}

Tensor tensor(const std::vector<double>& values, const Shape& shape, TensorOptions options) {
  detail::expect_values(static_cast<std::int64_t>(values.size()), shape);
  return generate(shape, options,
                  [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
}

Tensor tensor(const std::vector<double>& values, TensorOptions options) {
  return tensor(values, {static_cast<std::int64_t>(values.size())}, options);
}

Tensor scalar(double value, TensorOptions options) { return full({}, value, options); }

Tensor from_blob(void* data, const Shape& shape, DType dtype, std::function<void()> release,
                 Device device) {
  return from_blob(data, shape, dense_strides(shape), dtype, std::move(release), device);
}

Tensor from_blob(void* data, const Shape& shape, const Strides& strides, DType dtype,
                 std::function<void()> release, Device device) {
  const auto bytes = static_cast<std::size_t>(spanned_elements(shape, strides)) * size_of(dtype);
  if (!data && bytes > 0)
    fail<ValueError>("from_blob: expected memory for shape {}, got a null pointer",
                     to_string(shape));
  return Tensor(std::make_shared<Storage>(data, bytes, device, std::move(release)), shape, strides,
                0, dtype);
}

template <class T>
std::vector<T> to_vector(const Tensor& tensor) {
  // All memory that the view spans is copied to the host once. Elements are then found there by
  // their strides.
  const std::int64_t count = tensor.numel();
  std::vector<T> values(static_cast<std::size_t>(count));
  if (count == 0) return values;
  const auto spanned = static_cast<std::size_t>(spanned_elements(tensor.shape(), tensor.strides()));
  dispatch(AllTypes{}, tensor.dtype(), "to_vector", [&]<class Element>() {
    const auto host = std::make_unique<Element[]>(spanned);
    copy_bytes(host.get(), Device::cpu(), tensor.raw(), tensor.device(), spanned * sizeof(Element));
    Dims index = Dims::filled(tensor.rank(), 0);
    std::int64_t position = 0;
    for (auto&& value : values) {
      value = detail::convert<T>(host[static_cast<std::size_t>(position)]);
      for (int d = tensor.rank() - 1; d >= 0; --d) {
        position += tensor.strides()[d];
        if (++index[d] < tensor.shape()[d]) break;
        position -= index[d] * tensor.strides()[d];
        index[d] = 0;
      }
    }
  });
  return values;
}

template std::vector<float> to_vector(const Tensor&);
template std::vector<double> to_vector(const Tensor&);
template std::vector<BFloat16> to_vector(const Tensor&);
template std::vector<Float16> to_vector(const Tensor&);
template std::vector<std::int64_t> to_vector(const Tensor&);
template std::vector<std::uint8_t> to_vector(const Tensor&);
template std::vector<bool> to_vector(const Tensor&);

}  // namespace tutti
