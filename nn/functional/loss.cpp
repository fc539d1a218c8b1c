// Cross-entropy, the negative log-likelihood, and what the losses share. loss_elementwise.cpp has
// the losses of two tensors of one shape.
#include "loss.h"

#include "../../autograd/functions.h"
#include "../../autograd/indexing.h"
#include "../../autograd/operation.h"
#include "../../autograd/record.h"
#include "../../kernels/kernels.h"
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
  kernels::on(logits.device()).softmax.cross_entropy(logits, targets, rule, losses, normalizers);
  return record(
      "cross_entropy", losses, {logits},
      [rule, x = Saved(logits), t = Saved(targets),
       z = Saved(normalizers)](const Tensor& g) mutable {
        // The gradient takes the place of logits that nobody else can see, such as upsampled ones.
        // The kernels read all classes of a position before they write one.
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
  // Returns the indices, 0 where they are ignored.
  Tensor classes_of(const Tensor& targets) const {
    return where(mask, targets, zeros({}, {int64, targets.device()}));
  }
  void set_weights(const Tensor& weight, const Tensor& classes) {
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
                       const Counted& counted, const CrossEntropyOptions& options) {
  const double smoothing = options.label_smoothing;
  const kernels::CrossEntropyRule rule{.ignore_index = options.ignore_index};
  if (smoothing == 0) return index_losses(given, targets, rule) * counted.weights;
  // The logits get the sum of two gradients, which is rounded to 16 bits once.
  const Tensor logits = given.to(weight.dtype()),
               losses = index_losses(logits, targets, rule) * counted.weights * (1 - smoothing),
               uniform =
                   per_class(weight * (smoothing / static_cast<double>(logits.size(1))), logits);
  // An ignored position has no loss and no gradient, even if its logits are NaN.
  const Tensor mask = counted.mask.unsqueeze(1),
               none = zeros({}, {logits.dtype(), logits.device()});
  return losses +
         losses_of_distribution(where(mask, logits, none), uniform * mask.to(weight.dtype()));
}

// Throws if a class index is out of range. A GPU is not asked: reading its answer would make the
// host wait.
void check_range(const char* op, const Tensor& classes, std::int64_t count,
                 std::int64_t ignore_index) {
  if (!classes.device().is_cpu() || classes.numel() == 0) return;
  const auto smallest = min(classes).item<std::int64_t>(),
             largest = max(classes).item<std::int64_t>();
  if (smallest < 0 || largest >= count)
    fail<ValueError>("{}: expected targets from 0 to {} (or ignore_index {}), got {}", op,
                     count - 1, ignore_index, smallest < 0 ? smallest : largest);
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
  const Tensor classes = counted.classes_of(targets);
  check_range("cross_entropy", classes, logits.size(1), options.ignore_index);
  const Tensor weight = options.weight.detach().to(accumulate_dtype(logits.dtype()));
  counted.set_weights(weight, classes);
  return counted.reduce(weighted_losses(logits, targets, weight, counted, options),
                        options.reduction);
}

Tensor nll_loss(const Tensor& input, const Tensor& targets, const NLLLossOptions& options) {
  check_classes("nll_loss", input, targets);
  check_weight("nll_loss", input, options.weight);
  if (targets.dtype() != int64)
    fail<DTypeError>(
        "nll_loss: expected int64 targets (class indices), got {}; convert with "
        ".to(int64)",
        to_string(targets.dtype()));
  check_targets("nll_loss", input, "class indices", positions_of(input), targets);
  const DType wide = accumulate_dtype(input.dtype());
  Counted counted(targets, options.ignore_index);
  const Tensor classes = counted.classes_of(targets);
  check_range("nll_loss", classes, input.size(1), options.ignore_index);
  if (options.weight.defined()) counted.set_weights(options.weight.detach().to(wide), classes);
  const Tensor likelihoods = gather(input, 1, classes.unsqueeze(1)).squeeze(1).to(wide);
  const Tensor losses = -where(counted.mask, likelihoods, zeros({}, {wide, input.device()}));
  return counted.reduce(counted.weights.defined() ? losses * counted.weights : losses,
                        options.reduction);
}

}  // namespace tutti::nn
