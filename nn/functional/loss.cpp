// The losses: cross-entropy, then those that compare two tensors of
// one shape element by element.
#include "loss.h"

#include "../../autograd/functions.h"
#include "../../autograd/indexing.h"
#include "../../autograd/operation.h"
#include "../../autograd/record.h"
#include "../../kernels/kernels.h"
#include "spatial.h"

namespace tutti::nn {
namespace {

using autograd::record;
using autograd::Saved;

// Throws a DeviceError or DTypeError that names `op` unless `target` has the device and the dtype
// of `input`, or is float32 beside an input of 16 bits.
void expect_target_kind(const char* op, const Tensor& input, const Tensor& target) {
  autograd::expect_same_device(op, input, target);
  if (target.dtype() != input.dtype() &&
      !(size_of(input.dtype()) == 2 && target.dtype() == float32))
    fail<DTypeError>("{}: the input is {}, the target or weight {}; convert one with .to(dtype)",
                     op, to_string(input.dtype()), to_string(target.dtype()));
}

Tensor reduce_losses(const Tensor& losses, LossReduction reduction) {
  if (reduction == LossReduction::none) return losses;
  return reduction == LossReduction::sum ? sum(losses) : mean(losses);
}

// The shape of one value for each position: that of the logits without the classes.
Shape positions_of(const Tensor& logits) {
  Shape shape = logits.shape();
  shape.erase(1);
  return shape;
}

// Throws unless `input` holds a number for each class at each position.
void check_classes(const char* op, const Tensor& input, const Tensor& targets) {
  autograd::expect_floating(op, input);
  if (input.device() != targets.device())
    fail<DeviceError>("{}: the input is on {}, targets on {}; move one with .to(device)", op,
                      to_string(input.device()), to_string(targets.device()));
  if (input.rank() < 2)
    fail<ShapeError>("{}: expected an input (N, C) or (N, C, d1, ...), got shape {}", op,
                     to_string(input.shape()));
  if (input.shape()[1] == 0) fail<ShapeError>("{}: expected at least one class, got none", op);
}

void check_targets(const char* op, const Tensor& input, const char* kind, const Shape& expected,
                   const Tensor& targets) {
  if (!(targets.shape() == expected))
    fail<ShapeError>("{}: an input of shape {} needs {} of shape {}, got {}", op,
                     to_string(input.shape()), kind, to_string(expected),
                     to_string(targets.shape()));
}

void check_weight(const char* op, const Tensor& input, const Tensor& weight) {
  if (!weight.defined()) return;
  if (!(weight.shape() == Shape{input.shape()[1]}))
    fail<ShapeError>("{}: an input of shape {} needs a weight of shape ({}), got {}", op,
                     to_string(input.shape()), input.shape()[1], to_string(weight.shape()));
  expect_target_kind(op, input, weight);
}

// Returns whether the targets of cross_entropy() are class probabilities. Throws unless they are
// these or class indices.
bool are_probabilities(const Tensor& logits, const Tensor& targets) {
  const Shape positions = positions_of(logits);
  const bool is_probability = is_floating(targets.dtype());
  if (targets.dtype() != int64 && (!is_probability || targets.shape() == positions))
    fail<DTypeError>(
        "cross_entropy: expected int64 targets (class indices) or floating ones of the shape of "
        "the logits (probabilities), got {} of shape {}; convert indices with .to(int64)",
        to_string(targets.dtype()), to_string(targets.shape()));
  if (is_probability)
    check_targets("cross_entropy", logits, "class probabilities", logits.shape(), targets);
  else check_targets("cross_entropy", logits, "class indices", positions, targets);
  return is_probability;
}

// Returns -sum_c distribution_c log softmax(logits)_c for each position.
Tensor losses_of_distribution(const Tensor& logits, const Tensor& distribution) {
  return -sum(log_softmax(logits.to(accumulate_dtype(logits.dtype())), 1) * distribution, {1});
}

Tensor probability_losses(const Tensor& logits, const Tensor& probabilities,
                          const CrossEntropyOptions& options) {
  expect_target_kind("cross_entropy", logits, probabilities);
  if (options.ignore_index >= 0)
    fail<ValueError>(
        "cross_entropy: ignore_index {} is for class indices, but the targets are probabilities; "
        "give the positions to ignore probabilities of 0",
        options.ignore_index);
  const DType wide = accumulate_dtype(logits.dtype());
  Tensor distribution = probabilities.to(wide);
  if (options.label_smoothing > 0)
    distribution = distribution * (1 - options.label_smoothing) +
                   options.label_smoothing / static_cast<double>(logits.size(1));
  if (options.weight.defined())
    distribution = distribution * view_per_channel(options.weight.detach().to(wide), logits.rank());
  return losses_of_distribution(logits, distribution);
}

// Returns one loss for each class index, without class weights.
Tensor index_losses(const Tensor& logits, const Tensor& targets,
                    const kernels::CrossEntropyRule& rule) {
  const TensorOptions kind{accumulate_dtype(logits.dtype()), logits.device()};
  const Tensor losses = empty(targets.shape(), kind), normalizers = empty(targets.shape(), kind);
  kernels::on(logits.device()).softmax.cross_entropy(logits, targets, rule, losses, normalizers);
  return record("cross_entropy", losses, {logits},
                [rule, x = Saved(logits), t = Saved(targets),
                 z = Saved(normalizers)](const Tensor& g) mutable {
                  // The gradient takes the place of logits that nobody else can see, such as
                  // upsampled ones. The kernels read all classes of a position before they write
                  // one.
                  const bool is_last_use = autograd::frees_saved_tensors();
                  const Tensor saved = is_last_use ? x.take() : x.get();
                  const bool in_place = is_last_use && saved.is_exclusive() && saved.is_dense();
                  const Tensor out = in_place ? saved : empty_like(saved);
                  kernels::on(g.device()).softmax.cross_entropy_grad(g, saved, t, rule, z, out);
                  return out;
                });
}

// The class indices that count, those that are not ignored.
struct Counted {
  Tensor mask;     // bool
  Tensor weights;  // of the classes, 0 where they are ignored; undefined if there are none

  Counted(const Tensor& targets, std::int64_t ignore_index)
      : mask(ne(targets, static_cast<double>(ignore_index))) {}
  void set_weights(const Tensor& weight, const Tensor& targets) {
    const Tensor classes = where(mask, targets, zeros({}, {int64, targets.device()}));
    const Tensor of_classes = index_select(weight, 0, classes.reshape({-1}));
    weights = where(mask, of_classes.reshape(classes.shape()),
                    zeros({}, {weight.dtype(), weight.device()}));
  }
  // Returns the mean: the sum of the losses by that of the weights, or by the number of indices.
  // The device counts them, because reading the number back would make the host wait.
  Tensor reduce(const Tensor& losses, LossReduction reduction) const {
    if (reduction != LossReduction::mean) return reduce_losses(losses, reduction);
    return sum(losses) / (weights.defined() ? sum(weights) : sum(mask).to(losses.dtype()));
  }
};

// Returns one loss for each class index, times the weights of the targets' classes. Label smoothing
// weights the loss of every class by the weight of that class.
Tensor weighted_losses(const Tensor& given, const Tensor& targets, const Tensor& weight,
                       Counted& counted, const CrossEntropyOptions& options) {
  const double smoothing = options.label_smoothing;
  // With smoothing the logits get the sum of two gradients, which is rounded to 16 bits once.
  const Tensor logits = smoothing == 0 ? given : given.to(weight.dtype());
  const Tensor unweighted = index_losses(logits, targets, {.ignore_index = options.ignore_index});
  counted.set_weights(weight, targets);  // which index_losses() has checked
  if (smoothing == 0) return unweighted * counted.weights;
  const Tensor losses = unweighted * counted.weights * (1 - smoothing),
               uniform = view_per_channel(
                   weight * (smoothing / static_cast<double>(logits.size(1))), logits.rank());
  // An ignored position has no loss and no gradient, even if its logits are NaN.
  const Tensor mask = counted.mask.unsqueeze(1),
               none = zeros({}, {logits.dtype(), logits.device()});
  return losses +
         losses_of_distribution(where(mask, logits, none), uniform * mask.to(weight.dtype()));
}

// ---- Losses of two tensors of one shape.

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

// Returns log(1 + exp(x)) of a detached tensor.
Tensor softplus(const Tensor& x) {
  const Tensor out = empty_like(x);
  kernels::on(x.device()).elementwise.unary(kernels::Unary::softplus, x, out);
  return out;
}

}  // namespace

const char* to_string(LossReduction reduction) {
  constexpr const char* names[] = {"mean", "sum", "none"};
  return names[static_cast<int>(reduction)];
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  check_classes("cross_entropy", logits, targets);
  check_weight("cross_entropy", logits, options.weight);
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    fail<ValueError>("cross_entropy: expected a label smoothing from 0 to 1, got {}",
                     options.label_smoothing);
  if (are_probabilities(logits, targets))
    return reduce_losses(probability_losses(logits, targets, options), options.reduction);
  Counted counted(targets, options.ignore_index);
  if (!options.weight.defined()) {
    const Tensor losses = index_losses(
        logits, targets,
        {.label_smoothing = options.label_smoothing, .ignore_index = options.ignore_index});
    return counted.reduce(losses, options.reduction);
  }
  const Tensor weight = options.weight.detach().to(accumulate_dtype(logits.dtype()));
  return counted.reduce(weighted_losses(logits, targets, weight, counted, options),
                        options.reduction);
}

Tensor mse_loss(const Tensor& input, const Tensor& target, LossReduction reduction) {
  const Pair pair("mse_loss", input, target);
  return reduce_losses(square(pair.input - pair.target), reduction);
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
