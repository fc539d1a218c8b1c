#include "conv.h"

#include "../../autograd/operation.h"
#include "../../autograd/record.h"
#include "../../core/create.h"
#include "../../kernels/kernels.h"
#include "../../kernels/rounded_weights.h"
#include "spatial.h"

namespace tutti::nn {
namespace {

// The options, with one number for each spatial dimension, and the shape of the output.
struct Checked {
  ConvOptions options;
  Shape y_shape;
};

Checked check(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
              const ConvOptions& given) {
  if (x.rank() < 3 || x.rank() > 5)
    fail<ShapeError>(
        "{}: expected input (N, C, ...) with one to three spatial dimensions, got shape {}", op,
        to_string(x.shape()));
  autograd::expect_trainable(op, x);
  if (weight.rank() != x.rank())
    fail<ShapeError>(
        "{}: expected weight (O, I/groups, ...) with {} dimensions as input {} has, got shape {}",
        op, x.rank(), to_string(x.shape()), to_string(weight.shape()));
  const int rank = x.rank() - 2;
  const ConvOptions options{expand_option(op, "stride", given.stride, rank, 1),
                            expand_option(op, "padding", given.padding, rank, 0),
                            expand_option(op, "dilation", given.dilation, rank, 1), given.groups};
  if (weight.numel() == 0)
    fail<ShapeError>("{}: expected weight with channels and a kernel of at least 1, got shape {}",
                     op, to_string(weight.shape()));
  const std::int64_t outs = weight.shape()[0], ins = weight.shape()[1], groups = options.groups;
  if (groups < 1 || outs % groups != 0)
    fail<ValueError>("{}: expected groups that divide the {} output channels, got {}", op, outs,
                     groups);
  if (x.shape()[1] != ins * groups)
    fail<ShapeError>("{}: expected input with {} channels, got shape {}", op, ins * groups,
                     to_string(x.shape()));
  if (bias.defined() && !(bias.shape() == Shape{outs}))
    fail<ShapeError>("{}: expected bias of shape ({},), got {}", op, outs, to_string(bias.shape()));
  for (const Tensor& parameter : {weight, bias}) autograd::expect_parameter(op, x, parameter);
  const Dims kernel(weight.shape().begin() + 2, weight.shape().end());
  Shape y_shape{x.shape()[0], outs};
  for (std::int64_t size :
       output_sizes(op, x.shape(), {kernel, options.stride, options.padding, options.dilation}))
    y_shape.push_back(size);
  return {options, y_shape};
}

Tensor convolve(const char* op, const Tensor& given, const Tensor& weight, const Tensor& bias,
                const ConvOptions& given_options) {
  const Tensor cast = autocast(op, given);
  const Checked checked = check(op, cast, weight, bias, given_options);
  const ConvOptions& options = checked.options;

  constexpr MemoryFormat last = MemoryFormat::channels_last;
  const bool channels_last = cast.memory_format() == last || weight.memory_format() == last;
  const MemoryFormat format = channels_last ? last : MemoryFormat::contiguous;
  const Tensor x = cast.contiguous(format);
  // The kernels take the weight in either layout, and its gradient has the same one.
  const Tensor w = weight.is_contiguous() || weight.is_contiguous(last) ? weight
                                                                        : weight.contiguous();
  const Tensor b = bias.defined() ? bias.contiguous() : bias;

  const auto& kernels = kernels::on(x.device()).convolution;
  const Tensor y = empty(checked.y_shape, {x.dtype(), x.device()}, format);
  // cuDNN needs one dtype, so on CUDA a float32 weight is rounded once, for forward and backward.
  const Tensor used = x.device().is_cuda() ? kernels::rounded_weight(w.detach(), x.dtype())
                                           : w.detach();
  kernels.forward(x.detach(), used, b.defined() ? b.detach() : b, options, y);

  const bool for_x = autograd::needs_grad(x), for_w = autograd::needs_grad(w),
             for_b = autograd::needs_grad(b);
  return autograd::record(
      op, y, {x, w, b},
      [&kernels, options = checked.options, format, for_x, for_w, for_b, used, x_shape = x.shape(),
       x = for_w || for_b ? autograd::Saved(x.detach()) : autograd::Saved(),
       w = autograd::Saved(w.detach()), b = b.defined() ? b.detach() : b](const Tensor& gradient) {
        const Tensor dy = gradient.contiguous(format);
        std::vector<Tensor> result(3);
        if (for_x) {
          const Tensor& unchanged = w;  // Throws if the weight was changed in place.
          kernels.backward_input(dy, unchanged.dtype() == dy.dtype() ? unchanged : used, options,
                                 result[0] = empty(x_shape, {dy.dtype(), dy.device()}, format));
        }
        if (for_w || for_b)
          autograd::defer_gradients(
              [&kernels, options, for_w, for_b, x, w, b, dy, dtype = used.dtype()] {
                // The gradient has the dtype that the kernels compute it in; autograd widens it.
                const Tensor dw = empty_like(w.get(), dtype), db = for_b ? empty_like(b) : Tensor();
                kernels.backward_weight(x, dy, options, dw, db);
                return std::vector<Tensor>{{}, for_w ? dw : Tensor(), db};
              });
        return result;
      });
}

Tensor with_rank(const char* op, int rank, const Tensor& x, const Tensor& weight,
                 const Tensor& bias, const ConvOptions& options) {
  if (x.rank() != rank)
    fail<ShapeError>("{}: expected input of {} dimensions (N, C, ...), got shape {}", op, rank,
                     to_string(x.shape()));
  return convolve(op, x, weight, bias, options);
}

}  // namespace

Tensor convolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const ConvOptions& options) {
  return convolve("convolution", x, weight, bias, options);
}
void set_exact_convolutions(bool exact) { kernels::exact_convolutions = exact; }
bool exact_convolutions() { return kernels::exact_convolutions; }

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const ConvOptions& options) {
  return with_rank("conv1d", 3, x, weight, bias, options);
}
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const ConvOptions& options) {
  return with_rank("conv2d", 4, x, weight, bias, options);
}
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const ConvOptions& options) {
  return with_rank("conv3d", 5, x, weight, bias, options);
}

}  // namespace tutti::nn
