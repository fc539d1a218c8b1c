#include "group_norm.h"

#include "../../autograd/functions.h"
#include "../../autograd/record.h"
#include "../../core/create.h"
#include "../../kernels/kernels.h"
#include "../normalization.h"

namespace tutti::nn {
namespace {

using autograd::needs_grad;
using autograd::Saved;

void check(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias,
           double eps) {
  check_eps("group_norm", eps);
  if (x.rank() < 2)
    fail<ShapeError>("group_norm: expected input of shape (N, C, ...), got {}",
                     to_string(x.shape()));
  const std::int64_t channels = x.size(1);
  if (groups < 1 || channels < 1 || channels % groups != 0)
    fail<ValueError>("group_norm: expected groups that divide {} channels, got {}", channels,
                     groups);
  check_affine("group_norm", x, {channels}, weight, bias);
}

// The sizes of a call: N samples of G groups of `width` channels of `values` values each.
struct Sizes {
  std::int64_t samples, groups, width, values;

  std::int64_t channels() const { return groups * width; }
  double group_values() const { return static_cast<double>(width * values); }
  // The batch-norm kernels take statistics for each index of dimension 1.
  Shape by_group() const { return {1, samples * groups, width * values}; }
  Shape by_channel() const { return {1, samples * channels(), values}; }
};

// Repeats one value for each sample and group, (N G), so that there is one for each sample and
// channel, (N C).
Tensor repeat_group_values(const Tensor& t, const Sizes& sizes) {
  return t.reshape({sizes.samples, sizes.groups, 1})
      .expand({sizes.samples, sizes.groups, sizes.width})
      .reshape({sizes.samples * sizes.channels()})
      .contiguous();  // reshape can return a view of stride 0, which the kernels do not take
}

// Mean and 1 / sqrt(var + eps) of each sample and group, float64, (N G).
struct Statistics {
  Tensor mean, rstd;
};

Statistics statistics_of(const Tensor& x, const Sizes& sizes, double eps) {
  const auto& kernels = kernels::on(x.device()).batch_norm;
  const std::int64_t count = sizes.samples * sizes.groups;
  const Tensor moments = empty({kernels::packet_size(count)}, {float64, x.device()});
  const Statistics result{empty({count}, {float64, x.device()}),
                          empty({count}, {float64, x.device()})};
  kernels.moments(x.reshape(sizes.by_group()), {}, moments);
  kernels.finalize_statistics({}, moments, {.eps = {.value = eps}}, result.mean, result.rstd);
  return result;
}

// The Context holds what the backward needs of the forward; x is row-major.
struct Context {
  Saved x, weight;
  Statistics statistics;
  Sizes sizes;
  bool needs_x, needs_weight, needs_bias;
  DType weight_dtype, bias_dtype;
};

// The gradient of x is
//   rstd (weight dy - A / n - (x - mean) rstd^2 B / n)
// with the sums A of weight dy and B of weight dy (x - mean) over the n values of a group. One pass
// computes the part that is linear in x, and a second one adds the part that is linear in dy. The
// parts may cancel, so those of 16-bit tensors are computed in float32 and their sum is rounded.
Tensor input_gradient(const Context& context, const Tensor& gradient, const Tensor& dy_sums,
                      const Tensor& dy_x_sums) {
  const Sizes& sizes = context.sizes;
  const DType wide = accumulate_dtype(gradient.dtype());
  const Tensor x = context.x.get().to(wide), dy = gradient.to(wide);
  const auto& kernels = kernels::on(x.device()).batch_norm;
  const Tensor& rstd = context.statistics.rstd;
  const Tensor weight = repeat_channel_values(context.weight.get(), sizes.samples);
  const auto group_sum = [&](const Tensor& sums) {
    const Tensor weighted = weight.defined() ? sums * weight.to(float64) : sums;
    return sum(weighted.reshape({sizes.samples * sizes.groups, sizes.width}), {1});
  };
  const double per_value = -1 / sizes.group_values();
  const Tensor offset = rstd * group_sum(dy_sums) * per_value;
  const Tensor slope = rstd * rstd * rstd * group_sum(dy_x_sums) * per_value;
  const Tensor of_x = empty(sizes.by_group(), {x.dtype(), x.device()}),
               dx = empty(sizes.by_channel(), {x.dtype(), x.device()});
  kernels.apply(x.reshape(sizes.by_group()),
                {.mean = context.statistics.mean,
                 .rstd = ones(rstd.shape(), {float64, x.device()}),
                 .weight = slope,
                 .bias = offset},
                of_x);
  const Tensor channel_rstd = repeat_group_values(rstd, sizes);
  kernels.apply(dy,
                {.mean = zeros(channel_rstd.shape(), {float64, x.device()}),
                 .rstd = channel_rstd,
                 .weight = weight,
                 .bias = {},
                 .residual = of_x.reshape(sizes.by_channel())},
                dx);
  return dx.to(gradient.dtype());
}

std::vector<Tensor> backward(const Context& context, const Tensor& gradient) {
  const Sizes& sizes = context.sizes;
  const Tensor& x = context.x.get();
  const std::int64_t count = sizes.samples * sizes.channels();
  const Tensor dy = gradient.contiguous().reshape(sizes.by_channel());
  const Tensor sums = empty({kernels::packet_size(count)}, {float64, x.device()});
  const Tensor channel_rstd = repeat_group_values(context.statistics.rstd, sizes);
  kernels::on(x.device())
      .batch_norm.gradient_sums(
          {.dy = dy,
           .saved = {.normalization = {.mean = repeat_group_values(context.statistics.mean, sizes),
                                       .rstd = channel_rstd,
                                       .weight = {},
                                       .bias = {}},
                     .x = x.reshape(sizes.by_channel())},
           .sums = sums});
  const std::int64_t begin = kernels::packet_header_size;
  const Tensor dy_sums = sums.slice(0, begin, begin + count),
               dy_x_sums = sums.slice(0, begin + count, begin + 2 * count);
  const auto over_samples = [&](const Tensor& t, DType dtype) {
    return sum(t.reshape({sizes.samples, sizes.channels()}), {0}).to(dtype);
  };
  std::vector<Tensor> result(3);
  if (context.needs_x)
    result[0] = input_gradient(context, dy, dy_sums, dy_x_sums)
                    .reshape(gradient.shape())
                    .contiguous(gradient.memory_format());
  if (context.needs_weight)
    result[1] = over_samples(dy_x_sums * channel_rstd, context.weight_dtype);
  if (context.needs_bias) result[2] = over_samples(dy_sums, context.bias_dtype);
  return result;
}

// Sums over no values are 0.
Tensor normalize_nothing(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  return autograd::record(
      "group_norm", empty_like(input.detach()), {input, weight, bias},
      [weight = weight.defined() ? zeros_like(weight.detach()) : Tensor(),
       bias = bias.defined() ? zeros_like(bias.detach()) : Tensor()](const Tensor& dy) {
        return std::vector{dy, weight, bias};
      });
}

}  // namespace

Tensor group_norm(const Tensor& input, std::int64_t groups, const Tensor& weight,
                  const Tensor& bias, double eps) {
  check(input, groups, weight, bias, eps);
  if (input.numel() == 0) return normalize_nothing(input, weight, bias);
  const std::int64_t samples = input.size(0), channels = input.size(1);
  const Sizes sizes{samples, groups, channels / groups, input.numel() / (samples * channels)};
  const Tensor x = input.detach().contiguous();
  const Statistics statistics = statistics_of(x, sizes, eps);
  const Tensor own_weight = weight.defined() ? weight.detach() : Tensor(),
               own_bias = bias.defined() ? bias.detach() : Tensor();
  const Tensor y = empty(sizes.by_channel(), {x.dtype(), x.device()});
  kernels::on(x.device())
      .batch_norm.apply(x.reshape(sizes.by_channel()),
                        {.mean = repeat_group_values(statistics.mean, sizes),
                         .rstd = repeat_group_values(statistics.rstd, sizes),
                         .weight = repeat_channel_values(own_weight, samples),
                         .bias = repeat_channel_values(own_bias, samples)},
                        y);
  const Context context{.x = Saved(x),
                        .weight = Saved(own_weight),
                        .statistics = statistics,
                        .sizes = sizes,
                        .needs_x = needs_grad(input),
                        .needs_weight = needs_grad(weight),
                        .needs_bias = needs_grad(bias),
                        .weight_dtype = weight.defined() ? weight.dtype() : float32,
                        .bias_dtype = bias.defined() ? bias.dtype() : float32};
  return autograd::record("group_norm", y.reshape(input.shape()).contiguous(input.memory_format()),
                          {input, weight, bias}, [context](const Tensor& gradient) {
                            return backward(context, gradient);
                          });
}

}  // namespace tutti::nn
