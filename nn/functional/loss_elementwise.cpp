// The losses that compare two tensors of one shape element by element.
#include "../../autograd/functions.h"
#include "../../autograd/operation.h"
#include "../../autograd/record.h"
#include "../../kernels/kernels.h"
#include "loss.h"
#include "loss_operation.h"

namespace tutti::nn {
namespace {

using autograd::record;
using autograd::Saved;

// Input and target in the dtype that the loss is computed in, through which gradients flow back.
struct Pair {
  Tensor input, target;

  Pair(const char* op, const Tensor& x, const Tensor& t) {
    if (!(x.shape() == t.shape()))
      fail<ShapeError>("{}: input and target must have one shape, got {} and {}", op,
                       to_string(x.shape()), to_string(t.shape()));
    autograd::expect_floating(op, x);
    expect_target_kind(op, x, t);
    const DType wide = accumulate_dtype(x.dtype());
    input = x.to(wide);
    target = t.to(wide);
  }
};

Tensor unary(kernels::Unary op, const Tensor& detached) {
  const Tensor out = empty_like(detached);
  kernels::on(detached.device()).elementwise.unary(op, detached, out);
  return out;
}

// Returns log(1 + exp(x)) of a detached tensor.
Tensor softplus(const Tensor& x) { return unary(kernels::Unary::softplus, x); }

// Throws if a probability is outside [0, 1]. A GPU is not asked: reading its answer would make the
// host wait.
void check_probabilities(const Tensor& x) {
  if (!x.device().is_cpu() || x.numel() == 0) return;
  const double smallest = min(x).item<double>(), largest = max(x).item<double>();
  if (smallest < 0 || largest > 1)
    fail<ValueError>(
        "binary_cross_entropy: expected probabilities from 0 to 1, got {}; for unnormalised values "
        "use binary_cross_entropy_with_logits",
        smallest < 0 ? smallest : largest);
}

// Return the logarithms of detached probabilities x and 1 - x, bounded as in PyTorch.
Tensor bounded_log(const Tensor& x) { return clamp(log(x), -100, {}); }
Tensor bounded_log_of_rest(const Tensor& x) {
  return clamp(unary(kernels::Unary::log1p, -x), -100, {});  // 1 - x would lose a small x
}

}  // namespace

Tensor mse_loss(const Tensor& input, const Tensor& target, LossReduction reduction) {
  const Pair pair("mse_loss", input, target);
  return reduce_losses(square(pair.input - pair.target), reduction);
}

Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, const SmoothL1Options& options) {
  const double beta = options.beta;
  if (!(beta >= 0)) fail<ValueError>("smooth_l1_loss: expected a beta of 0 or more, got {}", beta);
  const Pair pair("smooth_l1_loss", input, target);
  const Tensor difference = pair.input.detach() - pair.target.detach(), distance = abs(difference),
               linear = distance - beta / 2,
               losses = beta == 0
                            ? linear
                            : where(lt(distance, beta), square(difference) * (0.5 / beta), linear);
  return reduce_losses(record("smooth_l1_loss", losses, {pair.input, pair.target},
                              [beta, d = Saved(difference)](const Tensor& g) {
                                const Tensor slope = beta == 0 ? sign(d) : clamp(d / beta, -1, 1),
                                             gradient = g * slope;
                                return std::vector{gradient, -gradient};
                              }),
                       options.reduction);
}

Tensor binary_cross_entropy(const Tensor& input, const Tensor& target, LossReduction reduction) {
  const Pair pair("binary_cross_entropy", input, target);
  const Tensor x = pair.input.detach(), t = pair.target.detach();
  check_probabilities(x);
  const Tensor losses = (t - 1) * bounded_log_of_rest(x) - t * bounded_log(x);
  return reduce_losses(
      record("binary_cross_entropy", losses, {pair.input, pair.target},
             [p = Saved(x), q = Saved(t)](const Tensor& g) {
               // PyTorch bounds the slope, which is infinite where the input is 0 or 1.
               const Tensor slope = (p - q) / clamp((1 - p) * p, 1e-12, {});
               return std::vector{g * slope, g * (bounded_log_of_rest(p) - bounded_log(p))};
             }),
      reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target,
                                        const BinaryCrossEntropyOptions& options) {
  constexpr const char* op = "binary_cross_entropy_with_logits";
  const Pair pair(op, logits, target);
  const Tensor x = pair.input.detach(), t = pair.target.detach();
  Tensor weight;
  if (options.pos_weight.defined()) {
    expect_target_kind(op, logits, options.pos_weight);
    weight = options.pos_weight.detach().to(x.dtype());
    if (!(broadcast_shapes(x.shape(), weight.shape(), op) == x.shape()))
      fail<ShapeError>("{}: a pos_weight of shape {} does not broadcast to logits of shape {}", op,
                       to_string(weight.shape()), to_string(x.shape()));
  }
  const auto weighted = [](const Tensor& positive, const Tensor& w) {
    return w.defined() ? positive * w : positive;
  };
  // log(1 + exp(-x)) is -log sigmoid(x), log(1 + exp(x)) is -log(1 - sigmoid(x)).
  const Tensor losses = weighted(t, weight) * softplus(-x) + (1 - t) * softplus(x);
  return reduce_losses(
      record(op, losses, {pair.input, pair.target},
             [=, x = Saved(x), t = Saved(t), w = Saved(weight)](const Tensor& g) {
               const Tensor slope = (1 - t.get()) * sigmoid(x) - weighted(t, w) * sigmoid(-x.get()),
                            target_slope = weighted(softplus(-x.get()), w) - softplus(x);
               return std::vector{g * slope, g * target_slope};
             }),
      options.reduction);
}

}  // namespace tutti::nn
