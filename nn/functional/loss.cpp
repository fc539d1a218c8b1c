// Cross-entropy, and what the losses share. loss_elementwise.cpp has the losses of two tensors of
// one shape.
#include "loss.h"

#include "../../autograd/functions.h"
#include "../../autograd/operation.h"
#include "../../autograd/record.h"
#include "../../kernels/embedding.h"
#include "../../kernels/softmax.h"
#include "loss_operation.h"

namespace tutti::nn {
namespace {

using autograd::record;
using autograd::Saved;

// The shape of one value for each position: that of the logits without the classes.
Shape positions_of(const Tensor& logits) {
  Shape shape = logits.shape();
  shape.erase(1);
  return shape;
}

// Returns whether the targets are class probabilities. Throws unless they are these or class
// indices.
bool are_probabilities(const Tensor& logits, const Tensor& targets) {
  const Shape positions = positions_of(logits);
  const bool is_probability = is_floating(targets.dtype());
  if (targets.dtype() != int64 && (!is_probability || targets.shape() == positions))
    fail<DTypeError>(
        "cross_entropy: expected int64 targets (class indices) or floating ones of the shape of "
        "the logits (probabilities), got {} of shape {}; convert indices with .to(int64)",
        to_string(targets.dtype()), to_string(targets.shape()));
  const Shape& expected = is_probability ? logits.shape() : positions;
  if (!(targets.shape() == expected))
    fail<ShapeError>("cross_entropy: logits of shape {} need {} of shape {}, got {}",
                     to_string(logits.shape()),
                     is_probability ? "class probabilities" : "class indices", to_string(expected),
                     to_string(targets.shape()));
  return is_probability;
}

void check_options(const Tensor& logits, const CrossEntropyOptions& options) {
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    fail<ValueError>("cross_entropy: expected a label smoothing from 0 to 1, got {}",
                     options.label_smoothing);
  const Tensor& weight = options.weight;
  if (!weight.defined()) return;
  if (!(weight.shape() == Shape{logits.shape()[1]}))
    fail<ShapeError>("cross_entropy: logits of shape {} need a weight of shape ({}), got {}",
                     to_string(logits.shape()), logits.shape()[1], to_string(weight.shape()));
  expect_target_kind("cross_entropy", logits, weight);
}

void check_logits(const Tensor& logits, const Tensor& targets) {
  autograd::expect_floating("cross_entropy", logits);
  if (logits.device() != targets.device())
    fail<DeviceError>("cross_entropy: logits are on {}, targets on {}; move one with .to(device)",
                      to_string(logits.device()), to_string(targets.device()));
  if (logits.rank() < 2)
    fail<ShapeError>("cross_entropy: expected logits (N, C) or (N, C, d1, ...), got shape {}",
                     to_string(logits.shape()));
  if (logits.shape()[1] == 0)
    fail<ShapeError>("cross_entropy: expected at least one class, got none");
}

// Returns one value for each class, of shape (C), in a shape that broadcasts to the logits.
Tensor per_class(const Tensor& values, const Tensor& logits) {
  Shape shape = Dims::filled(logits.rank(), 1);
  shape[1] = values.numel();
  return values.reshape(shape);
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
    distribution = distribution * per_class(options.weight.detach().to(wide), logits);
  return losses_of_distribution(logits, distribution);
}

// Returns one loss for each class index, without class weights.
Tensor index_losses(const Tensor& logits, const Tensor& targets,
                    const kernels::CrossEntropyRule& rule) {
  const TensorOptions kind{accumulate_dtype(logits.dtype()), logits.device()};
  const Tensor losses = empty(targets.shape(), kind), normalizers = empty(targets.shape(), kind);
  kernels::softmax(logits.device()).cross_entropy(logits, targets, rule, losses, normalizers);
  return record(
      "cross_entropy", losses, {logits},
      [rule, x = Saved(logits), t = Saved(targets), z = Saved(normalizers)](const Tensor& g) {
        const Tensor out = empty_like(x.get());
        kernels::softmax(g.device()).cross_entropy_grad(g, x, t, rule, z, out);
        return out;
      });
}

// Returns the weight of the class of each target, 0 where the target is ignored.
Tensor weights_of(const Tensor& targets, const Tensor& weight, const Tensor& counted) {
  const Tensor none = zeros({}, {int64, targets.device()});
  Shape shape = targets.shape();
  shape.push_back(1);
  const Tensor rows = empty(shape, {weight.dtype(), weight.device()});
  kernels::embedding(weight.device())
      .gather(weight.reshape({weight.numel(), 1}), where(counted, targets, none), rows);
  return where(counted, rows.reshape(targets.shape()),
               zeros({}, {weight.dtype(), weight.device()}));
}

// Returns one loss for each class index, times the weights of the targets' classes. Label smoothing
// weights the loss of every class by the weight of that class.
Tensor weighted_losses(const Tensor& given, const Tensor& targets, const Tensor& weight,
                       const Tensor& target_weights, const CrossEntropyOptions& options) {
  const double smoothing = options.label_smoothing;
  const kernels::CrossEntropyRule rule{.ignore_index = options.ignore_index};
  if (smoothing == 0) return index_losses(given, targets, rule) * target_weights;
  // The logits get the sum of two gradients, which is rounded to 16 bits once.
  const Tensor logits = given.to(weight.dtype()),
               losses = index_losses(logits, targets, rule) * target_weights * (1 - smoothing),
               uniform =
                   per_class(weight * (smoothing / static_cast<double>(logits.size(1))), logits);
  // An ignored position has no loss and no gradient, even if its logits are NaN.
  const Tensor counted = ne(targets, static_cast<double>(options.ignore_index)).unsqueeze(1),
               none = zeros({}, {logits.dtype(), logits.device()});
  return losses +
         losses_of_distribution(where(counted, logits, none), uniform * counted.to(weight.dtype()));
}

}  // namespace

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

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  check_logits(logits, targets);
  check_options(logits, options);
  if (are_probabilities(logits, targets))
    return reduce_losses(probability_losses(logits, targets, options), options.reduction);
  // The device counts the targets: reading the number back would make the host wait.
  const DType wide = accumulate_dtype(logits.dtype());
  const Tensor counted = ne(targets, static_cast<double>(options.ignore_index));
  Tensor losses, weights;
  if (options.weight.defined()) {
    const Tensor weight = options.weight.detach().to(wide);
    weights = weights_of(targets, weight, counted);
    losses = weighted_losses(logits, targets, weight, weights, options);
  } else {
    losses = index_losses(
        logits, targets,
        {.label_smoothing = options.label_smoothing, .ignore_index = options.ignore_index});
  }
  if (options.reduction != LossReduction::mean) return reduce_losses(losses, options.reduction);
  return sum(losses) / (weights.defined() ? sum(weights) : sum(counted).to(wide));
}

}  // namespace tutti::nn
