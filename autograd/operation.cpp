#include "operation.h"

#include <cmath>

namespace tutti::autograd {

void expect_same_device(const char* op, const Tensor& a, const Tensor& b) {
  if (a.device() != b.device())
    fail<DeviceError>(
        "{}: expected tensors on one device, got {} and {}; move one with .to(device)", op,
        to_string(a.device()), to_string(b.device()));
}

void expect_same_dtype_and_device(const char* op, const Tensor& a, const Tensor& b) {
  expect_same_device(op, a, b);
  if (a.dtype() != b.dtype())
    fail<DTypeError>(
        "{}: expected tensors of one dtype, got {} and {}; convert one with .to(dtype)", op,
        to_string(a.dtype()), to_string(b.dtype()));
}

DTypeRange::DTypeRange(DType dtype)
    : least(is_floating(dtype) ? -INFINITY
            : dtype == int64   ? -0x1p63
                               : 0),
      most(is_floating(dtype) ? INFINITY
           : dtype == int64   ? 0x1p63
           : dtype == uint8   ? 255
                              : 1) {}

namespace {

void expect_whole_number(const char* op, const Tensor& x, double number, DType range_of) {
  const DTypeRange range(range_of);
  if (!is_floating(x.dtype()) &&
      !(number == std::trunc(number) && number >= range.least && number <= range.most))
    fail<DTypeError>(
        "{}: the number {} does not fit a tensor of {}; convert the tensor with .to(float32)", op,
        number, to_string(x.dtype()));
}

}  // namespace

void expect_number_fits(const char* op, const Tensor& x, double number) {
  expect_whole_number(op, x, number, int64);
}

void expect_element_fits(const char* op, const Tensor& x, double number) {
  expect_whole_number(op, x, number, x.dtype());
}

void expect_floating(const char* op, const Tensor& x) {
  if (!is_floating(x.dtype()))
    fail<DTypeError>("{}: expected a floating dtype, got {}; convert with .to(float32)", op,
                     to_string(x.dtype()));
}

void expect_computable(const char* op, const Tensor& x) {
  if (x.device().is_cpu() && x.dtype() == float16)
    fail<DTypeError>(
        "{}: cannot compute in float16 on the CPU; convert with .to(float32) or .to(bfloat16)", op);
}

void expect_trainable(const char* op, const Tensor& x) {
  expect_floating(op, x);
  expect_computable(op, x);
}

void expect_parameter(const char* op, const Tensor& input, const Tensor& parameter) {
  if (!parameter.defined()) return;
  if (parameter.device() != input.device())
    fail<DeviceError>("{}: input is on {}, a parameter on {}; move one with .to(device)", op,
                      to_string(input.device()), to_string(parameter.device()));
  if (parameter.dtype() != input.dtype() &&
      !(size_of(input.dtype()) == 2 && parameter.dtype() == float32))
    fail<DTypeError>("{}: input is {}, a parameter {}; convert one with .to(dtype)", op,
                     to_string(input.dtype()), to_string(parameter.dtype()));
}

Tensor empty_result(const Shape& shape, const std::vector<Tensor>& inputs, DType dtype) {
  for (const Tensor& x : inputs)
    if (x.shape() == shape && x.is_dense()) return empty_like(x, dtype);
  return empty(shape, {dtype, inputs.front().device()});
}

Tensor gradient_buffer(const Tensor& g, const Tensor& like) {
  const bool reusable = g.is_exclusive() && g.dtype() == like.dtype() &&
                        g.strides() == like.strides() && g.is_dense();
  return reusable ? g : empty_like(like);
}

}  // namespace tutti::autograd
