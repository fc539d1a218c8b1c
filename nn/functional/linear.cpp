#include "linear.h"

#include "../../autograd/operation.h"
#include "../../autograd/record.h"
#include "../../core/create.h"
#include "../../kernels/kernels.h"
#include "../../kernels/rounded_weights.h"

namespace tutti::nn {
namespace {

void check(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  autograd::expect_trainable("linear", x);
  if (weight.rank() != 2)
    fail<ShapeError>("linear: expected weight of shape (out, in), got {}",
                     to_string(weight.shape()));
  if (x.rank() == 0 || x.size(-1) != weight.shape()[1])
    fail<ShapeError>("linear: expected input (..., {}), got shape {}", weight.shape()[1],
                     to_string(x.shape()));
  if (bias.defined() && !(bias.shape() == Shape{weight.shape()[0]}))
    fail<ShapeError>("linear: expected bias of shape ({},), got {}", weight.shape()[0],
                     to_string(bias.shape()));
  for (const Tensor& parameter : {weight, bias}) autograd::expect_parameter("linear", x, parameter);
}

}  // namespace

Tensor linear(const Tensor& given, const Tensor& weight, const Tensor& bias) {
  const Tensor cast = autocast("linear", given);
  check(cast, weight, bias);
  const std::int64_t outs = weight.shape()[0], ins = weight.shape()[1];
  const Tensor x = cast.reshape({product(cast.shape(), 0, cast.rank() - 1), ins}).contiguous();
  const Tensor w = weight.contiguous(), b = bias.defined() ? bias.contiguous() : bias;

  const auto& kernels = kernels::on(x.device());
  const Tensor y = empty({x.shape()[0], outs}, {x.dtype(), x.device()});
  const Tensor used = x.device().is_cuda() ? kernels::rounded_weight(w.detach(), x.dtype())
                                           : w.detach();
  kernels.matmul(x.detach(), used.transpose(0, 1), b.defined() ? b.detach() : b, y);

  const bool for_x = autograd::needs_grad(x), for_w = autograd::needs_grad(w),
             for_b = autograd::needs_grad(b);
  const Tensor out = autograd::record(
      "linear", y, {x, w, b},
      [&kernels, for_x, for_w, for_b, used, x = autograd::Saved(x.detach()),
       w = autograd::Saved(w.detach()),
       b_dtype = b.defined() ? b.dtype() : x.dtype()](const Tensor& gradient) {
        const Tensor dy = gradient.contiguous();
        std::vector<Tensor> result(3);
        if (for_x) {
          w.get();  // Throws if the weight was changed in place.
          kernels.matmul(dy, used, {}, result[0] = empty_like(x.get()));
        }
        if (for_w) kernels.matmul(dy.transpose(0, 1), x, {}, result[1] = empty_like(w.get()));
        if (for_b) {
          const Tensor db = empty({1, dy.shape()[1]}, {b_dtype, dy.device()});
          kernels.reduce.reduce(kernels::Reduction::sum, dy, db);
          result[2] = db.alias({dy.shape()[1]}, {1}, 0);
        }
        return result;
      });
  Shape shape = given.shape();
  shape[shape.size() - 1] = outs;
  return out.reshape(shape);
}

}  // namespace tutti::nn
