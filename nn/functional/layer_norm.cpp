#include "layer_norm.h"

#include "../../autograd/record.h"
#include "../../core/create.h"
#include "../../kernels/kernels.h"
#include "../normalization.h"

namespace tutti::nn {

using autograd::needs_grad;
using autograd::Saved;

Tensor layer_norm(const Tensor& input, const Shape& normalized_shape, const Tensor& weight,
                  const Tensor& bias, double eps) {
  check_eps("layer_norm", eps);
  const int first = input.rank() - normalized_shape.size();
  if (normalized_shape.empty() || first < 0 ||
      !(Shape(input.shape().begin() + first, input.shape().end()) == normalized_shape))
    fail<ShapeError>("layer_norm: expected input whose last dimensions are {}, got {}",
                     to_string(normalized_shape), to_string(input.shape()));
  check_affine("layer_norm", input, normalized_shape, weight, bias);
  const auto& kernels = kernels::on(input.device()).layer_norm;
  const Tensor x = input.detach().contiguous(), y = empty(x.shape(), {x.dtype(), x.device()});
  const auto dense = [](const Tensor& t) {
    return t.defined() ? t.detach().contiguous() : Tensor();
  };
  const Tensor w = dense(weight);
  const std::int64_t rows = product(x.shape(), 0, first);
  const Tensor mean = empty({rows}, {float64, x.device()}),
               rstd = empty({rows}, {float64, x.device()});
  kernels.forward(x, w, dense(bias), eps, y, mean, rstd);
  return autograd::record(
      "layer_norm", y, {input, weight, bias},
      [saved_x = Saved(x), saved_w = Saved(w), mean, rstd, needs_x = needs_grad(input),
       needs_weight = needs_grad(weight), needs_bias = needs_grad(bias), shape = normalized_shape,
       weight_dtype = weight.defined() ? weight.dtype() : float32,
       bias_dtype = bias.defined() ? bias.dtype() : float32, &kernels](const Tensor& gradient) {
        const Tensor copy = gradient.is_contiguous() ? Tensor() : gradient.contiguous();
        const Tensor& dy = copy.defined() ? copy : gradient;
        // If nothing else holds dy, dx overwrites it, because its memory is in the cache.
        const bool reuse = dy.is_exclusive();
        Tensor dx, d_weight, d_bias;
        if (needs_weight) d_weight = empty(shape, {weight_dtype, dy.device()});
        if (needs_bias) d_bias = empty(shape, {bias_dtype, dy.device()});
        if (needs_weight || needs_bias)
          kernels.parameter_grad(dy, saved_x.get(), mean, rstd, d_weight, d_bias);
        if (needs_x) {
          dx = reuse ? dy : empty(dy.shape(), {dy.dtype(), dy.device()});
          kernels.input_grad(dy, saved_x.get(), mean, rstd, saved_w.get(), dx);
        }
        return std::vector{dx, d_weight, d_bias};
      });
}

}  // namespace tutti::nn
