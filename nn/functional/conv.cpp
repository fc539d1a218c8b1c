// Convolution and transposed convolution. The output of the latter is the gradient of the input of
// the former, so both are one operation, in which the kernels of forward and backward change
// places.
#include "conv.h"

#include "../../autograd/operation.h"
#include "../../autograd/record.h"
#include "../../core/create.h"
#include "../../kernels/kernels.h"
#include "../../kernels/rounded_weights.h"
#include "conv_transpose.h"
#include "spatial.h"

#include <algorithm>
#include <limits>

namespace tutti::nn {
namespace {

// The name of an operation in errors, and which of the two it is.
struct Operation {
  const char* name;
  bool is_transposed;
};

// The options, with one number for each spatial dimension, and the shape of the output.
struct Checked {
  ConvOptions options;
  Shape y_shape;
};

void check_ranks(Operation op, const Tensor& x, const Tensor& weight) {
  if (x.rank() < 3 || x.rank() > 5)
    fail<ShapeError>(
        "{}: expected input (N, C, ...) with one to three spatial dimensions, got shape {}",
        op.name, to_string(x.shape()));
  autograd::expect_trainable(op.name, x);
  if (weight.rank() != x.rank())
    fail<ShapeError>("{}: expected weight {} with {} dimensions as input {} has, got shape {}",
                     op.name, op.is_transposed ? "(I, O/groups, ...)" : "(O, I/groups, ...)",
                     x.rank(), to_string(x.shape()), to_string(weight.shape()));
  if (weight.numel() == 0)
    fail<ShapeError>("{}: expected weight with channels and a kernel of at least 1, got shape {}",
                     op.name, to_string(weight.shape()));
}

// Returns the sizes of the output of a transposed convolution.
Dims transposed_sizes(const char* op, const Tensor& x, const Tensor& weight,
                      const ConvOptions& options, const Dims& output_padding) {
  const auto& [stride, padding, dilation, groups] = options;
  constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();
  Dims sizes;
  for (int d = 0; d < stride.size(); ++d) {
    const std::int64_t in = x.size(d + 2), kernel = weight.size(d + 2), more = output_padding[d];
    if (more >= stride[d])
      fail<ValueError>("{}: expected an output_padding below the stride {}, got {}", op,
                       to_string(stride), to_string(output_padding));
    const bool fits = std::max({in, kernel, stride[d], padding[d], dilation[d]}) <= largest;
    const std::int64_t size =
        fits ? (in - 1) * stride[d] - 2 * padding[d] + dilation[d] * (kernel - 1) + more + 1 : 0;
    if (in < 1 || size < 1 || size > largest)
      fail<ShapeError>(
          "{}: expected output sizes from 1 to {}, got another one from input {}, weight {}, "
          "stride {}, padding {} and dilation {}",
          op, largest, to_string(x.shape()), to_string(weight.shape()), to_string(stride),
          to_string(padding), to_string(dilation));
    sizes.push_back(size);
  }
  return sizes;
}

Checked check(Operation op, const Tensor& x, const Tensor& weight, const Tensor& bias,
              const ConvOptions& given, const Dims& output_padding) {
  check_ranks(op, x, weight);
  const auto expand = [&](const char* option, const Dims& values, std::int64_t minimum) {
    return expand_option(op.name, option, values, x.rank() - 2, minimum);
  };
  const ConvOptions options{expand("stride", given.stride, 1), expand("padding", given.padding, 0),
                            expand("dilation", given.dilation, 1), given.groups};
  const std::int64_t first = weight.size(0), groups = given.groups;
  if (groups < 1 || first % groups != 0)
    fail<ValueError>("{}: expected groups that divide the {} {} channels, got {}", op.name, first,
                     op.is_transposed ? "input" : "output", groups);
  const std::int64_t second = weight.size(1) * groups, ins = op.is_transposed ? first : second,
                     outs = op.is_transposed ? second : first;
  if (x.size(1) != ins)
    fail<ShapeError>("{}: expected input with {} channels, got shape {}", op.name, ins,
                     to_string(x.shape()));
  if (bias.defined() && !(bias.shape() == Shape{outs}))
    fail<ShapeError>("{}: expected bias of shape ({},), got {}", op.name, outs,
                     to_string(bias.shape()));
  autograd::expect_parameter(op.name, x, weight);
  autograd::expect_parameter(op.name, x, bias);
  const Dims kernel(weight.shape().begin() + 2, weight.shape().end());
  const Dims sizes =
      op.is_transposed ? transposed_sizes(op.name, x, weight, options,
                                          expand("output_padding", output_padding, 0))
                       : output_sizes(op.name, x.shape(),
                                      {kernel, options.stride, options.padding, options.dilation});
  Shape y_shape{x.size(0), outs};
  for (const std::int64_t size : sizes) y_shape.push_back(size);
  return {options, y_shape};
}

// Computes the output of a convolution, or with `backwards` that of a transposed one: the gradient
// of the input from that of the output `x`.
void compute(const kernels::Kernels& kernels, bool backwards, const Tensor& x, const Tensor& weight,
             const Tensor& bias, const ConvOptions& options, const Tensor& y) {
  if (!backwards) return kernels.convolution.forward(x, weight, bias, options, y);
  kernels.convolution.backward_input(x, weight, options, y);
  if (bias.defined())
    kernels.elementwise.binary(kernels::Binary::add, y,
                               view_per_channel(bias.to(x.dtype()), y.rank()), y);
}

Tensor convolve(Operation op, const Tensor& given, const Tensor& weight, const Tensor& bias,
                const ConvOptions& given_options, const Dims& output_padding = {}) {
  const Tensor cast = autocast(op.name, given);
  const auto [options, y_shape] = check(op, cast, weight, bias, given_options, output_padding);

  constexpr MemoryFormat last = MemoryFormat::channels_last;
  const bool channels_last = cast.memory_format() == last || weight.memory_format() == last;
  const MemoryFormat format = channels_last ? last : MemoryFormat::contiguous;
  const Tensor x = cast.contiguous(format);
  // The kernels take the weight in either layout, and its gradient has the same one.
  const Tensor w = weight.is_contiguous() || weight.is_contiguous(last) ? weight
                                                                        : weight.contiguous();
  const Tensor b = bias.defined() ? bias.contiguous() : bias, own_b = b.defined() ? b.detach() : b;

  const auto& kernels = kernels::on(x.device());
  const Tensor y = empty(y_shape, {x.dtype(), x.device()}, format);
  // cuDNN needs one dtype, so on CUDA a float32 weight is rounded once, for forward and backward.
  const Tensor used = x.device().is_cuda() ? kernels::rounded_weight(w.detach(), x.dtype()) : w;
  compute(kernels, op.is_transposed, x, used, own_b, options, y);

  // A convolution's kernel computes the gradients of weight and bias together.
  const bool for_x = autograd::needs_grad(x), for_w = autograd::needs_grad(w),
             for_b = autograd::needs_grad(b), defers = for_w || (for_b && !op.is_transposed);
  if (!for_x && !for_w && !for_b) return y;
  return autograd::record(
      op.name, y, {x, w, b},
      [=, &kernels, options = options, x_shape = x.shape(),
       x = defers ? autograd::Saved(x) : autograd::Saved(), w = autograd::Saved(w),
       b = own_b](const Tensor& gradient) {
        const Tensor dy = gradient.contiguous(format);
        std::vector<Tensor> result(3);
        if (for_x) {
          const Tensor& unchanged = w;  // Throws if the weight was changed in place.
          compute(kernels, !op.is_transposed, dy,
                  unchanged.dtype() == dy.dtype() ? unchanged : used, {}, options,
                  result[0] = empty(x_shape, {dy.dtype(), dy.device()}, format));
        }
        if (for_b && op.is_transposed) {
          result[2] = empty_like(b);
          kernels.reduce.reduce(kernels::Reduction::sum, dy,
                                view_per_channel(result[2], dy.rank()));
        }
        if (defers)
          autograd::defer_gradients(
              [=, &kernels, is_transposed = op.is_transposed, dtype = used.dtype()] {
                // The gradient has the dtype that the kernels compute it in; autograd widens it.
                const Tensor dw = empty_like(w.get(), dtype);
                if (is_transposed) {
                  kernels.convolution.backward_weight(dy, x, options, dw, {});
                  return std::vector<Tensor>{{}, dw, {}};
                }
                const Tensor db = for_b ? empty_like(b) : Tensor();
                kernels.convolution.backward_weight(x, dy, options, dw, db);
                return std::vector<Tensor>{{}, for_w ? dw : Tensor(), db};
              });
        return result;
      });
}

}  // namespace

Tensor convolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const ConvOptions& options) {
  return convolve({"convolution", false}, x, weight, bias, options);
}
void set_exact_convolutions(bool exact) { kernels::exact_convolutions = exact; }

Tensor conv_transpose(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const ConvTransposeOptions& options) {
  const ConvOptions own{options.stride, options.padding, options.dilation, options.groups};
  return convolve({"conv_transpose", true}, x, weight, bias, own, options.output_padding);
}

}  // namespace tutti::nn
