#include "loss.h"

#include "../../autograd/functions.h"
#include "../../autograd/operation.h"
#include "../../autograd/record.h"
#include "../../kernels/softmax.h"

namespace tutti::nn {
namespace {

using autograd::record;
using autograd::Saved;

void check(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  autograd::expect_floating("cross_entropy", logits);
  if (targets.dtype() != int64)
    fail<DTypeError>(
        "cross_entropy: expected int64 targets (class indices), got {}; convert with .to(int64)",
        to_string(targets.dtype()));
  if (logits.device() != targets.device())
    fail<DeviceError>("cross_entropy: logits are on {}, targets on {}; move one with .to(device)",
                      to_string(logits.device()), to_string(targets.device()));
  if (logits.rank() < 2)
    fail<ShapeError>("cross_entropy: expected logits (N, C) or (N, C, d1, ...), got shape {}",
                     to_string(logits.shape()));
  Shape expected = logits.shape();
  expected.erase(1);
  if (!(targets.shape() == expected))
    fail<ShapeError>("cross_entropy: logits of shape {} need targets of shape {}, got {}",
                     to_string(logits.shape()), to_string(expected), to_string(targets.shape()));
  if (logits.shape()[1] == 0)
    fail<ShapeError>("cross_entropy: expected at least one class, got none");
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    fail<ValueError>("cross_entropy: expected a label smoothing from 0 to 1, got {}",
                     options.label_smoothing);
}

// Returns one loss for each target.
Tensor losses_of(const Tensor& logits, const Tensor& targets,
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

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  check(logits, targets, options);
  const Tensor losses =
      losses_of(logits, targets,
                {.label_smoothing = options.label_smoothing, .ignore_index = options.ignore_index});
  if (options.reduction == LossReduction::none) return losses;
  const Tensor total = sum(losses);
  if (options.reduction == LossReduction::sum) return total;
  // The device counts the targets: reading the number back would make the host wait.
  const Tensor counted = sum(ne(targets, static_cast<double>(options.ignore_index)));
  return total / counted.to(total.dtype());
}

Tensor mse_loss(const Tensor& input, const Tensor& target, LossReduction reduction) {
  if (!(input.shape() == target.shape()))
    fail<ShapeError>("mse_loss: input and target must have one shape, got {} and {}",
                     to_string(input.shape()), to_string(target.shape()));
  autograd::expect_same_dtype_and_device("mse_loss", input, target);
  const DType wide = accumulate_dtype(input.dtype());
  const Tensor losses = square(input.to(wide) - target.to(wide));
  if (reduction == LossReduction::none) return losses;
  return reduction == LossReduction::sum ? sum(losses) : mean(losses);
}

}  // namespace tutti::nn
