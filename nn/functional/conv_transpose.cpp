#include "conv_transpose.h"

#include "../../autograd/operation.h"
#include "../../autograd/record.h"
#include "../../kernels/kernels.h"
#include "../../kernels/rounded_weights.h"
#include "spatial.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tutti::nn {
namespace {

void check_tensors(const char* op, int rank, const Tensor& x, const Tensor& weight,
                   const Tensor& bias, std::int64_t groups) {
  if (rank > 0 ? x.rank() != rank : x.rank() < 3 || x.rank() > 5)
    fail<ShapeError>("{}: expected input (N, C, ...) of {} dimensions, got shape {}", op,
                     rank > 0 ? std::to_string(rank) : "3 to 5", to_string(x.shape()));
  autograd::expect_trainable(op, x);
  if (weight.rank() != x.rank() || weight.numel() == 0 || weight.size(0) != x.size(1))
    fail<ShapeError>("{}: expected weight ({}, O/groups, ...) of {} dimensions, got shape {}", op,
                     x.size(1), x.rank(), to_string(weight.shape()));
  if (groups < 1 || x.size(1) % groups != 0)
    fail<ValueError>("{}: expected groups that divide the {} input channels, got {}", op, x.size(1),
                     groups);
  const std::int64_t outs = weight.size(1) * groups;
  if (bias.defined() && !(bias.shape() == Shape{outs}))
    fail<ShapeError>("{}: expected bias of shape ({},), got {}", op, outs, to_string(bias.shape()));
  for (const Tensor& parameter : {weight, bias}) autograd::expect_parameter(op, x, parameter);
}

// Returns the options of the convolution whose gradient is computed, and the shape of the result.
std::pair<kernels::ConvOptions, Shape> transposed(const char* op, const Tensor& x,
                                                  const Tensor& weight,
                                                  const ConvTransposeOptions& given) {
  const int rank = x.rank() - 2;
  const Dims stride = expand_option(op, "stride", given.stride, rank, 1),
             padding = expand_option(op, "padding", given.padding, rank, 0),
             dilation = expand_option(op, "dilation", given.dilation, rank, 1),
             more = expand_option(op, "output_padding", given.output_padding, rank, 0);
  Shape y_shape{x.size(0), weight.size(1) * given.groups};
  constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();
  for (int d = 0; d < rank; ++d) {
    const std::int64_t in = x.size(d + 2), kernel = weight.size(d + 2);
    if (more[d] >= stride[d])
      fail<ValueError>("{}: expected an output_padding below the stride {}, got {}", op,
                       to_string(stride), to_string(more));
    const bool fits = std::max({in, kernel, stride[d], padding[d], dilation[d]}) <= largest;
    const std::int64_t size =
        fits ? (in - 1) * stride[d] - 2 * padding[d] + dilation[d] * (kernel - 1) + more[d] + 1 : 0;
    if (in < 1 || size < 1 || size > largest)
      fail<ShapeError>(
          "{}: expected output sizes from 1 to {}, got another one from input {}, weight {}, "
          "stride "
          "{}, padding {} and dilation {}",
          op, largest, to_string(x.shape()), to_string(weight.shape()), to_string(stride),
          to_string(padding), to_string(dilation));
    y_shape.push_back(size);
  }
  return {kernels::ConvOptions{stride, padding, dilation, given.groups}, y_shape};
}

// Returns a view of a value for each channel that broadcasts to tensors (N, C, ...).
Tensor of_channels(const Tensor& values, int rank) {
  Shape shape = Dims::filled(rank, 1);
  shape[1] = values.numel();
  return values.reshape(shape);
}

// `rank` is that of the input, or 0 for any.
Tensor convolve_transposed(const char* op, int rank, const Tensor& given, const Tensor& weight,
                           const Tensor& bias, const ConvTransposeOptions& given_options) {
  const Tensor cast = autocast(op, given);
  check_tensors(op, rank, cast, weight, bias, given_options.groups);
  const auto [options, y_shape] = transposed(op, cast, weight, given_options);

  constexpr MemoryFormat last = MemoryFormat::channels_last;
  const bool channels_last = cast.memory_format() == last || weight.memory_format() == last;
  const MemoryFormat format = channels_last ? last : MemoryFormat::contiguous;
  const Tensor x = cast.contiguous(format);
  const Tensor w = weight.is_contiguous() || weight.is_contiguous(last) ? weight
                                                                        : weight.contiguous();

  const auto& kernels = kernels::on(x.device());
  const Tensor y = empty(y_shape, {x.dtype(), x.device()}, format);
  // As in convolution(): cuDNN needs one dtype, so a float32 weight is rounded once on CUDA.
  const Tensor used = x.device().is_cuda() ? kernels::rounded_weight(w.detach(), x.dtype())
                                           : w.detach();
  kernels.convolution.backward_input(x.detach(), used, options, y);
  if (bias.defined())
    kernels.elementwise.binary(kernels::Binary::add, y,
                               of_channels(bias.detach().to(x.dtype()), y.rank()), y);

  const bool for_x = autograd::needs_grad(x), for_w = autograd::needs_grad(w),
             for_b = autograd::needs_grad(bias);
  return autograd::record(
      op, y, {x, w, bias},
      [&kernels, options = options, format, for_x, for_w, for_b, used, x_shape = x.shape(),
       x = for_w ? autograd::Saved(x.detach()) : autograd::Saved(), w = autograd::Saved(w.detach()),
       b = bias.defined() ? bias.detach() : bias](const Tensor& gradient) {
        const Tensor dy = gradient.contiguous(format);
        std::vector<Tensor> result(3);
        if (for_x) {
          const Tensor& unchanged = w;  // Throws if the weight was changed in place.
          kernels.convolution.forward(
              dy, unchanged.dtype() == dy.dtype() ? unchanged : used, {}, options,
              result[0] = empty(x_shape, {dy.dtype(), dy.device()}, format));
        }
        if (for_b) {
          result[2] = empty(b.shape(), {b.dtype(), b.device()});
          kernels.reduce.reduce(kernels::Reduction::sum, dy, of_channels(result[2], dy.rank()));
        }
        if (for_w)
          autograd::defer_gradients([&kernels, options, x, w, dy, dtype = used.dtype()] {
            const Tensor dw = empty_like(w.get(), dtype);
            kernels.convolution.backward_weight(dy, x, options, dw, {});
            return std::vector<Tensor>{{}, dw, {}};
          });
        return result;
      });
}

}  // namespace

Tensor conv_transpose(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const ConvTransposeOptions& options) {
  return convolve_transposed("conv_transpose", 0, x, weight, bias, options);
}
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTransposeOptions& options) {
  return convolve_transposed("conv_transpose1d", 3, x, weight, bias, options);
}
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTransposeOptions& options) {
  return convolve_transposed("conv_transpose2d", 4, x, weight, bias, options);
}
Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTransposeOptions& options) {
  return convolve_transposed("conv_transpose3d", 5, x, weight, bias, options);
}

}  // namespace tutti::nn
