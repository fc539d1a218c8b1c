#include "loss.h"

namespace tutti::nn {

CrossEntropyLoss::CrossEntropyLoss(const Options& options) : Loss(options) {
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    fail<ValueError>("CrossEntropyLoss: expected label_smoothing from 0 to 1, got {}",
                     options.label_smoothing);
}

Tensor CrossEntropyLoss::operator()(const Tensor& logits, const Tensor& targets) const {
  Options options = options_;
  options.weight = weight_;  // The module may have been moved since.
  return cross_entropy(logits, targets, options);
}

std::string CrossEntropyLoss::describe() const {
  return fmt::format("{}, ignore_index={}, label_smoothing={}", Loss::describe(),
                     options_.ignore_index, options_.label_smoothing);
}

Tensor MSELoss::operator()(const Tensor& input, const Tensor& target) const {
  return mse_loss(input, target, options_.reduction);
}

Tensor BCEWithLogitsLoss::operator()(const Tensor& logits, const Tensor& target) const {
  return binary_cross_entropy_with_logits(
      logits, target, {.reduction = options_.reduction, .pos_weight = pos_weight_});
}

}  // namespace tutti::nn
